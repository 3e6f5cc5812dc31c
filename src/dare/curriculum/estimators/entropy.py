"""EDCO: the policy's own uncertainty on a short prefix stands in for difficulty."""

from __future__ import annotations

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.estimators.base import Estimator, Measure, candidates, measured
from dare.errors import require


class EntropyEstimator(Estimator):
    """`measure(rows)` generates one prefix a prompt (64 tokens, T = 0.6) and answers with the mean
    token entropy of each. The selector sees the entropy itself, softmax(H / tau); as a failure
    rate it is read on the scale from the lowest to the highest entropy measured (METHOD 9).
    """

    scores = "none"
    uses_prior = False

    needs = frozenset({"entropy"})
    generates = True

    def __init__(self, count: int, measure: Measure, limit: int = 0) -> None:
        super().__init__(count)
        self._measure, self._limit = measure, limit
        self._arrays["entropy"] = np.zeros(count)
        self._arrays["known"] = np.zeros(count, bool)

    def refresh(self, step: int, rng: np.random.Generator) -> int:
        """Measure all prompts, or a random part of them."""
        rows = candidates(self.count, self._limit, rng)
        values, tokens = measured(self._measure, rows, "entropy")
        proper = np.isfinite(values) & (values >= 0)
        require(proper.all(), "entropy", values[~proper][:1].tolist(), "must be finite and >= 0")
        entropy, known = self._arrays["entropy"], self._arrays["known"]
        entropy[rows], known[rows] = values, True
        # Unmeasured prompts must neither win nor lose the softmax: they take the mean.
        entropy[~known] = entropy[known].mean()
        low, high = entropy[known].min(), entropy[known].max()
        spread = high - low
        self._arrays["difficulty"] = (
            (entropy - low) / spread if spread > 0 else np.full(self.count, 0.5)
        )
        return tokens

    def signal(self) -> Array:
        """The mean token entropy of each prompt."""
        return self._arrays["entropy"]
