"""StepPlan: what one step will do (METHOD 1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.rollouts import Conditioning
from dare.curriculum.tiers import Tier


def _empty() -> Array:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class StepPlan:
    """The prompts of a step in drawn order (P), and for each what it gets.

    A `probe` plan is rolled out and observed for the estimate alone; a `train` plan is trained on,
    together with the buffered groups it names in `replay`.
    """

    step: int
    kind: Literal["train", "probe"]
    prompt_P: Array
    ids: list[str]
    difficulty_P: Array
    tier_P: Array
    plain_P: Array
    extra_P: Array
    extra_conditioning_P: Array
    max_tokens_P: Array
    clip_low_P: Array
    clip_high_P: Array
    shaping_P: Array
    hints: list[list[str]]
    """Fragments for the prompts whose extra rollouts are hinted; empty lists elsewhere."""
    replay: Array = field(default_factory=_empty)
    """Buffer groups to train on beside the fresh ones."""
    replay_rollouts: int = 0

    @property
    def train(self) -> bool:
        """False for rollouts that serve the estimate alone."""
        return self.kind == "train"

    @property
    def group_size_P(self) -> Array:
        """Fresh rollouts of each prompt."""
        return self.plain_P + self.extra_P

    @property
    def fresh_rollouts(self) -> int:
        """Rollouts to generate."""
        return int(self.group_size_P.sum())

    def rows(self) -> dict[str, Array]:
        """One entry a rollout to generate: prompt row, place in the plan, conditioning, budget.

        Groups are contiguous, plain rollouts first; split it evenly over processes.
        """
        place = np.repeat(np.arange(len(self.prompt_P)), self.group_size_P)
        first = np.repeat(np.cumsum(self.group_size_P) - self.group_size_P, self.group_size_P)
        within = np.arange(len(place)) - first
        helped = within >= self.plain_P[place]
        conditioning = np.where(helped, self.extra_conditioning_P[place], Conditioning.PLAIN)
        return {
            "prompt": self.prompt_P[place],
            "place": place,
            "conditioning": conditioning.astype(np.uint8),
            "max_tokens": self.max_tokens_P[place],
        }

    def tier_counts(self) -> dict[str, int]:
        """Prompts of each tier."""
        counts = np.bincount(self.tier_P, minlength=len(Tier))
        return {tier.name.lower(): int(counts[tier]) for tier in Tier}
