"""Groups without variance are dropped after their rollouts (DAPO) or skipped before (GRESO)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dare.config import EstimatorConfig
from dare.curriculum.arrays import Array
from dare.curriculum.estimators.baselines import CurrentEstimator
from dare.curriculum.rollouts import Outcome


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


LOWEST, HIGHEST = 0.05, 0.95
"""Bounds of the two exploration probabilities."""
RARELY = 0.01
"""A prompt is never skipped more surely than with one minus this."""


def chance_to_roll_out(run_P: Array, explore_easy: float, explore_hard: float) -> Array:
    """max(p^z, 0.01), z being the latest groups in a row that were all right, or all wrong.

    `run_P` is +z after z groups all right, with p = `explore_easy`; -z after z groups all wrong,
    with p = `explore_hard`; 0 after a mixed group or none, and such a prompt is never skipped.
    """
    base = np.where(run_P > 0, explore_easy, explore_hard)
    chance: Array = np.maximum(base ** np.abs(run_P), RARELY)
    return chance


def adjusted(explore: float, share: float, target: float, step: float) -> float:
    """Explore less where the share of such groups has reached its target, otherwise more."""
    moved = explore - step if share >= target else explore + step
    return min(max(moved, LOWEST), HIGHEST)


class GresoEstimator(DynamicEstimator):
    """Passes over the data in random order; what is not skipped is rolled out, then filtered.

    After each step from the second pass on the two exploration probabilities move toward the
    target share of groups without variance: a third of it all right, two thirds all wrong.
    """

    def __init__(self, count: int, wanted: int, config: EstimatorConfig) -> None:
        super().__init__(count, wanted, config)
        self._target, self._step_size = config.greso_target, config.greso_step
        self._arrays["run"] = np.zeros(count, np.int64)
        self._arrays["turn"] = np.zeros(count)  # place in this pass
        self._arrays["passed"] = np.ones(count, bool)  # had its turn in this pass
        start = config.greso_start
        self._scalars.update(passes=0, explore_easy=start, explore_hard=start, easy=0, hard=0)
        # What the probe that was asked for last will have changed once it is observed.
        self._after: tuple[Array, Array, int] | None = None

    def begin_step(self, step: int) -> None:
        """Move the exploration probabilities by what the step before has shown."""
        values = self._scalars
        if values["passes"] > 1 and values["groups"]:
            easy, hard = values["easy"] / values["groups"], values["hard"] / values["groups"]
            third, by = self._target / 3.0, self._step_size
            values["explore_easy"] = adjusted(values["explore_easy"], easy, third, by)
            values["explore_hard"] = adjusted(values["explore_hard"], hard, 2.0 * third, by)
        super().begin_step(step)
        values.update(easy=0, hard=0)

    def choose(self, untried: Array, size: int, rng: np.random.Generator) -> Array:
        """The next of the pass that are not skipped; a new pass begins where one ends."""
        passed, turn = self._arrays["passed"].copy(), self._arrays["turn"].copy()
        passes = int(self._scalars["passes"])
        explore = self._scalars["explore_easy"], self._scalars["explore_hard"]
        chance = chance_to_roll_out(self._arrays["run"], *explore)
        free = np.zeros(self.count, bool)
        free[untried] = True
        chosen = np.empty(0, np.int64)
        while len(chosen) < size and free.any():
            waiting = (free & ~passed).nonzero()[0]
            if not len(waiting):
                passed, turn = np.zeros(self.count, bool), rng.random(self.count)
                passes += 1
                continue
            waiting = waiting[turn[waiting].argsort(kind="stable")]
            taken = rng.random(len(waiting)) < chance[waiting]
            if not taken.any():  # few are left, all of them skipped nearly always
                passed[waiting] = True
                continue
            end = int(np.searchsorted(np.cumsum(taken), size - len(chosen))) + 1
            passed[waiting[:end]] = True
            new = waiting[:end][taken[:end]]
            free[new] = False
            chosen = np.concatenate([chosen, new])
        self._after = passed, turn, passes
        return chosen

    def observe(self, outcome: Outcome) -> None:
        """Lengthen or end the runs, and count the groups without variance."""
        if self._after is not None:
            self._arrays["passed"], self._arrays["turn"], self._scalars["passes"] = self._after
            self._after = None
        super().observe(outcome)
        rows = outcome.prompt_Q
        right, wrong = outcome.failures_Q == 0, outcome.failures_Q == outcome.trials_Q
        run = self._arrays["run"]
        longer = np.where(right, np.maximum(run[rows], 0) + 1, 0)
        run[rows] = np.where(wrong, np.minimum(run[rows], 0) - 1, longer)
        if outcome.step == self._scalars["step"]:
            self._scalars["easy"] += int(np.count_nonzero(right))
            self._scalars["hard"] += int(np.count_nonzero(wrong))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore; a probe that was only asked for is forgotten."""
        super().load_state_dict(state)
        self._after = None

    def metrics(self) -> dict[str, float]:
        """Beside those of dynamic sampling: passes begun and both exploration probabilities."""
        own = ("passes", "explore_easy", "explore_hard")
        return {**super().metrics(), **{name: float(self._scalars[name]) for name in own}}
