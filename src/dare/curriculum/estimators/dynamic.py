"""Dynamic sampling (DAPO): groups without variance are dropped and others take their place."""

from __future__ import annotations

import math

import numpy as np

from dare.config import EstimatorConfig
from dare.curriculum.arrays import Array
from dare.curriculum.estimators.base import Outcome
from dare.curriculum.estimators.current import CurrentEstimator


class DynamicEstimator(CurrentEstimator):
    """Uniform draws until a step has enough groups with both right and wrong rollouts.

    The first probe of a step has `probe_factor` times the groups wanted. A refill has as many
    prompts as are missing, over the share that was mixed in the probe before, times
    `refill_margin`; never more than the first. What is dropped was generated and counts.
    """

    def __init__(self, count: int, wanted: int, config: EstimatorConfig) -> None:
        super().__init__(count, 0.0, 1.0, wanted, config.max_probes)
        self._most = math.ceil(config.probe_factor * wanted)
        self._margin = config.refill_margin
        self._scalars.update(tried=0, mixed=0, groups=0, kept=0)

    def qualifies(self, rate: Array) -> Array:
        """Neither all right nor all wrong."""
        return (rate > 0.0) & (rate < 1.0)

    def probe_size(self, missing: int) -> int:
        """min(most, margin x missing / share mixed in the last probe)."""
        if self._scalars["mixed"] == 0:
            return self._most
        needed = self._margin * missing * self._scalars["tried"] / self._scalars["mixed"]
        return min(self._most, math.ceil(needed))

    def begin_step(self, step: int) -> None:
        """No probe yet, no group yet."""
        super().begin_step(step)
        self._scalars.update(tried=0, mixed=0, groups=0, kept=0)

    def observe(self, outcome: Outcome) -> None:
        """Take the groups in, and count those that are mixed."""
        super().observe(outcome)
        tried = len(outcome.prompt_Q)
        if outcome.step == self._scalars["step"] and tried:
            rate = outcome.failures_Q / outcome.trials_Q
            mixed = int(np.count_nonzero(self.qualifies(rate)))
            groups, kept = self._scalars["groups"] + tried, self._scalars["kept"] + mixed
            self._scalars.update(tried=tried, mixed=mixed, groups=groups, kept=kept)

    def metrics(self) -> dict[str, float]:
        """Groups rolled out in the step so far, and the share of them that is mixed."""
        groups = self._scalars["groups"]
        return {"groups_tried": groups, "groups_mixed": self._scalars["kept"] / max(groups, 1)}
