"""current-FR: the failure rate of fresh rollouts; the oracle that the others are held against."""

from __future__ import annotations

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.estimators.base import Estimator, Outcome


class CurrentEstimator(Estimator):
    """Rolls prompts out with the policy as it is until enough fall into [low, high].

    Each `probe` names prompts not yet tried in this step; after `max_probes` of them the step
    goes on with what qualified, so that a data set without medium prompts cannot hang a run.
    """

    scores = "none"
    uses_prior = False

    def __init__(self, count: int, low: float, high: float, wanted: int, max_probes: int) -> None:
        super().__init__(count)
        self._low, self._high = low, high
        self._wanted, self._max_probes = wanted, max_probes
        self._arrays["measured_step"] = np.full(count, -1, np.int64)
        self._scalars.update(step=-1, probes=0)

    def probe(self, step: int, rng: np.random.Generator) -> Array | None:
        """As many untried prompts as are wanted, until enough qualify."""
        if self._scalars["step"] != step:
            self._scalars.update(step=step, probes=0)
        untried = np.flatnonzero(self._arrays["measured_step"] != step)
        done = len(self.keep(step)) >= self._wanted
        if done or not len(untried) or self._scalars["probes"] >= self._max_probes:
            return None
        size = min(self._wanted, len(untried))
        return np.sort(rng.choice(untried, size=size, replace=False))

    def keep(self, step: int) -> Array:
        """Prompts measured in this step whose failure rate is in the target interval."""
        fresh = self._arrays["measured_step"] == step
        rate = self._arrays["difficulty"]
        return np.flatnonzero(fresh & (rate >= self._low) & (rate <= self._high))

    def observe(self, outcome: Outcome) -> None:
        """The newest group is the estimate, and the only one."""
        if outcome.step == self._scalars["step"]:
            self._scalars["probes"] += 1
        rows = outcome.prompt_Q
        self._arrays["difficulty"][rows] = outcome.failures_Q / outcome.trials_Q
        self._arrays["measured_step"][rows] = outcome.step
