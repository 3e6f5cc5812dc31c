"""previous-FR: the unweighted failure rate of the buffered rollouts."""

from __future__ import annotations

import numpy as np

from dare.curriculum.arrays import compact
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators.base import Estimator, Outcome


class PreviousEstimator(Estimator):
    """SNIS with every weight 1: drift is ignored; 0.5 when unseen (METHOD 9)."""

    scores = "none"
    uses_prior = False

    def __init__(self, count: int, buffer: RolloutBuffer) -> None:
        super().__init__(count)
        self._buffer = buffer

    def observe(self, outcome: Outcome) -> None:
        """Re-read the buffer; a prompt that has left it is unseen again."""
        plain = self._buffer.plain
        prompts, inverse = compact(self._buffer["prompt"][plain])
        failure = 1.0 - self._buffer["success"][plain].astype(np.float64)
        count = np.bincount(inverse, minlength=len(prompts))
        self._arrays["difficulty"] = np.full(self.count, 0.5)
        rate = np.bincount(inverse, weights=failure, minlength=len(prompts)) / count
        self._arrays["difficulty"][prompts] = rate
