"""Two lines that need no estimator: the best constant, and the mean of what was seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, compact
from dare.curriculum.estimators.base import Estimator
from dare.curriculum.rollouts import Outcome


class MeanOfSeen(Estimator):
    """Every prompt at the mean failure rate of the groups seen so far, 0.5 before the first."""

    scores = "none"
    uses_prior = False

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._scalars = {"groups": 0, "failed": 0.0}

    def observe(self, outcome: Outcome) -> None:
        """See Estimator."""
        scored = outcome.trials_Q > 0
        if scored.any():
            rates = outcome.failures_Q[scored] / outcome.trials_Q[scored]
            self._scalars["groups"] += len(rates)
            self._scalars["failed"] += float(rates.sum())
            mean = self._scalars["failed"] / self._scalars["groups"]
            self._arrays["difficulty"] = np.full(self.count, mean)


def best_constant(truth_Q: Array, point_Q: Array) -> dict[str, Any]:
    """Least error that any one number for all of these prompts can have, chosen in hindsight.

    A number for every point (a step of a run), since the policy changes. For the absolute error
    that is the median of the true rates, for the squared one their mean.
    """
    if not len(truth_Q):
        return {"mae": None, "mse": None}
    points, place = compact(point_Q)
    absolute, squared = np.empty(len(truth_Q)), np.empty(len(truth_Q))
    for point in range(len(points)):
        here = place == point
        absolute[here] = np.abs(truth_Q[here] - np.median(truth_Q[here]))
        squared[here] = (truth_Q[here] - truth_Q[here].mean()) ** 2
    return {"mae": float(absolute.mean()), "mse": float(squared.mean())}
