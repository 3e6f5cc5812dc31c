"""current-FR: the failure rate of fresh rollouts; the oracle that the others are held against."""

from __future__ import annotations

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.estimators.base import Estimator, Outcome


class CurrentEstimator(Estimator):
    """Rolls prompts out with the policy as it is until enough fall into [low, high].

    Each `probe` names prompts not yet tried in this step; after `max_probes` of them the step
    goes on with what qualified, so that a data set without medium prompts cannot hang a run.
    Subclasses say otherwise which groups qualify, how many prompts a probe has and which ones.
    """

    scores = "none"
    uses_prior = False

    def __init__(self, count: int, low: float, high: float, wanted: int, max_probes: int) -> None:
        super().__init__(count)
        self._low, self._high = low, high
        self._wanted, self._max_probes = wanted, max_probes
        self._arrays["measured_step"] = np.full(count, -1, np.int64)
        self._scalars.update(step=-1, probes=0)

    def qualifies(self, rate: Array) -> Array:
        """Which failure rates of a fresh group make it worth training on."""
        return (rate >= self._low) & (rate <= self._high)

    def probe_size(self, missing: int) -> int:
        """Prompts of the next probe, where so many groups are missing."""
        return self._wanted

    def choose(self, untried: Array, size: int, rng: np.random.Generator) -> Array:
        """At most `size` of the untried rows. Calls before `observe` must give the same."""
        return rng.choice(untried, size=min(size, len(untried)), replace=False)

    def begin_step(self, step: int) -> None:
        """The first call of a step, before any of its probes."""
        self._scalars.update(step=step, probes=0)

    def probe(self, step: int, rng: np.random.Generator) -> Array | None:
        """Untried prompts, until enough qualify."""
        if self._scalars["step"] != step:
            self.begin_step(step)
        untried = np.flatnonzero(self._arrays["measured_step"] != step)
        missing = self._wanted - len(self.keep(step))
        if missing <= 0 or not len(untried) or self._scalars["probes"] >= self._max_probes:
            return None
        return np.sort(self.choose(untried, self.probe_size(missing), rng))

    def keep(self, step: int) -> Array:
        """Prompts measured in this step whose group qualifies."""
        fresh = np.flatnonzero(self._arrays["measured_step"] == step)
        return fresh[self.qualifies(self._arrays["difficulty"][fresh])]

    def observe(self, outcome: Outcome) -> None:
        """The newest group is the estimate, and the only one."""
        if outcome.step == self._scalars["step"]:
            self._scalars["probes"] += 1
        rows = outcome.prompt_Q
        self._arrays["difficulty"][rows] = outcome.failures_Q / outcome.trials_Q
        self._arrays["measured_step"][rows] = outcome.step
