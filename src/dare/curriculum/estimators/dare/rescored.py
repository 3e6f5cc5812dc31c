"""The same estimate, where what was sampled is weighed by how likely the policy finds it today."""

from __future__ import annotations

from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, compact
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators.base import Measure, Wanted
from dare.curriculum.estimators.dare.estimator import LiveEstimator
from dare.curriculum.estimators.dare.regression import Groups

_CLIP = 4.0  # log-ratios count up to this
_HOPELESS = 20.0  # nats by which the plain groups foretold better; nothing is rescored then


class RescoredEstimator(LiveEstimator):
    """LiveEstimator that looks at each group in two ways: as it came out, and weighed for today.

    Which way is believed is decided as the speed of forgetting is: by how well each foretold the
    groups of prompts that returned. Where weights say nothing, as those of long responses after a
    few steps, the plain groups win and rescoring rests.
    """

    scores: Wanted = "all"

    def __init__(
        self,
        count: int,
        buffer: RolloutBuffer,
        states: Measure | None = None,
        solutions: Measure | None = None,
        lengths: Array | None = None,
    ) -> None:
        super().__init__(count, states, solutions, lengths, ways=2)
        self._buffer = buffer
        names = ("trials", "failures", "step", "visits")
        self._arrays.update({f"memory_now_{name}": np.zeros(0) for name in names})

    @property
    def rescores(self) -> bool:  # type: ignore[override]
        """False while the weights foretell much worse than the plain groups do."""
        plain, weighed = (np.max(way) for way in self._scalars["scores"])
        return bool(weighed > plain - _HOPELESS)

    def metrics(self) -> dict[str, float]:
        """What the base class tells, and whether the weights are believed."""
        return {**super().metrics(), "weighed": float(self._scalars["way"])}

    def refresh(self, step: int, rng: np.random.Generator) -> int:
        """Weigh the groups in memory whose rollouts were rescored, and learn from them."""
        if self._weigh(step):
            self._learn(step, move=False)
        return 0

    def _groups(self, index: Array, held: Any, step: int, way: int) -> Groups:
        if not way:
            return super()._groups(index, held, step, way)
        return self._looked_at("memory_now_", index, held, step)

    def _weigh(self, step: int) -> bool:
        """What the rollouts of each group in memory amount to for the policy of now.

        Weights of all rollouts of a prompt hang together: right ones of one group against wrong
        ones of another. They count for as many rollouts as their spread leaves (Kish), and for no
        more than the policy of now would give them.
        """
        arrays, buffer = self._arrays, self._buffer
        known = buffer.plain & ~np.isnan(buffer.log_ratio)
        again = buffer["scored_step"][known] > buffer["step"][known]
        if not again.any() or not len(arrays["memory_prompt"]):
            return False
        weight = np.where(again, np.exp(np.clip(buffer.log_ratio[known], -_CLIP, _CLIP)), 1.0)
        failed = 1.0 - buffer["success"][known].astype(np.float64)
        _, index = compact(buffer["prompt"][known])
        mass, square = np.bincount(index, weight), np.bincount(index, weight**2)
        count = np.minimum(mass / square, 1.0)[index]
        # A group is known by its prompt and its step.
        span = step + 1
        key = buffer["prompt"][known] * span + buffer["step"][known]
        groups, member = compact(key)
        held = (arrays["memory_prompt"] * span + arrays["memory_step"]).astype(np.int64)
        place = np.minimum(np.searchsorted(groups, held), len(groups) - 1)
        there = groups[place] == held
        place = place[there]
        total = np.bincount(member, count * weight)
        scored = np.bincount(member, buffer["scored_step"][known]) / np.bincount(member)
        arrays["memory_now_trials"][there] = total[place]
        arrays["memory_now_failures"][there] = np.bincount(member, count * weight * failed)[place]
        arrays["memory_now_step"][there] = scored[place]
        rows = arrays["memory_prompt"][there].astype(np.int64)
        renewed = scored[place] > arrays["memory_step"][there]
        arrays["memory_now_visits"][there] = np.where(
            renewed, arrays["visits"][rows], arrays["memory_visits"][there]
        )
        return True
