"""MoPPS: a discounted Beta posterior per prompt, read by Thompson sampling."""

from __future__ import annotations

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.estimators.base import Estimator, Outcome


class PosteriorEstimator(Estimator):
    """Beta(1, 1) prior; at each visit with s successes in k rollouts (METHOD 9)

    alpha <- discount alpha + (1 - discount) + s,   beta <- discount beta + (1 - discount) + k - s.
    """

    scores = "none"
    uses_prior = False

    def __init__(self, count: int, discount: float) -> None:
        super().__init__(count)
        self._discount = discount
        self._arrays["alpha"] = np.ones(count)
        self._arrays["beta"] = np.ones(count)

    def observe(self, outcome: Outcome) -> None:
        """The update above; other prompts keep their posterior."""
        rows, keep = outcome.prompt_Q, self._discount
        alpha, beta = self._arrays["alpha"], self._arrays["beta"]
        alpha[rows] = keep * alpha[rows] + (1 - keep) + outcome.trials_Q - outcome.failures_Q
        beta[rows] = keep * beta[rows] + (1 - keep) + outcome.failures_Q
        self._arrays["difficulty"][rows] = beta[rows] / (alpha[rows] + beta[rows])

    def sample(self, rng: np.random.Generator) -> Array:
        """1 - gamma with gamma ~ Beta(alpha, beta): the Thompson draw."""
        draw = rng.random(self.count)  # Beta(1, 1), where nothing is known
        alpha, beta = self._arrays["alpha"], self._arrays["beta"]
        known = np.flatnonzero(alpha + beta != 2.0)
        draw[known] = 1.0 - rng.beta(alpha[known], beta[known])
        return draw

    def evidence(self) -> Array:
        """Rollouts that the posterior counts, less the prior's two."""
        counted: Array = self._arrays["alpha"] + self._arrays["beta"] - 2.0
        return counted
