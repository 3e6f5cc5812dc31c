"""Tiers, what each gives a prompt, and the exact fill of the rollout budget (METHOD 6)."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from dare.config import CurriculumConfig, TierConfig
from dare.curriculum.arrays import Array
from dare.errors import require


class Tier(IntEnum):
    """easy / medium / hard, from difficulty and two thresholds."""

    EASY = 0
    MEDIUM = 1
    HARD = 2


class TierPolicy:
    """Group size, token budget, clip range and shaping weight of each tier."""

    def __init__(self, config: CurriculumConfig) -> None:
        self.config = config
        self._easy = config.tiers and config.easy.use
        self._hard = config.tiers and config.hard.use
        easy: TierConfig = config.easy if self._easy else config.medium
        hard: TierConfig = config.hard if self._hard else config.medium
        tiers = (easy, config.medium, hard)
        self.group_size = np.array([tier.group_size for tier in tiers])
        self.max_tokens = np.array(
            [max(1, round(config.max_tokens * tier.max_tokens_ratio)) for tier in tiers]
        )
        self.clip_low = np.array([tier.clip_low for tier in tiers])
        self.clip_high = np.array([tier.clip_high for tier in tiers])

    def assign(self, difficulty: Array) -> Array:
        """Tier of each difficulty: easy below, hard above, medium between (both ends included)."""
        if not self.config.tiers:
            return np.full(len(difficulty), Tier.MEDIUM, dtype=np.uint8)
        tier = (difficulty >= self.config.easy.below).astype(np.uint8)
        tier += difficulty > self.config.hard.above
        return tier

    def plain(self, tier: Array, size: Array) -> Array:
        """Rollouts of each group taken from the bare prompt; a hard group adds helped ones."""
        if not self._hard:
            return size.copy()
        return np.where(tier == Tier.HARD, np.minimum(size, self.config.hard.plain), size)

    def shaping_weight(self, tier: Array, difficulty: Array) -> Array:
        """Signed weight of len/T_max in the shaped reward.

        easy: -lambda w_easy, w_easy = clamp((d_easy - d)/d_easy, 0, 1), on right rollouts;
        hard: +lambda w_hard, w_hard = clamp((d - d_hard)/(1 - d_hard), 0, 1), on wrong ones.
        """
        easy, hard = self.config.easy, self.config.hard
        weight = np.zeros(len(difficulty))
        is_easy, is_hard = self._easy & (tier == Tier.EASY), self._hard & (tier == Tier.HARD)
        easiness = (easy.below - difficulty[is_easy]) / max(easy.below, 1e-12)
        hardness = (difficulty[is_hard] - hard.above) / max(1.0 - hard.above, 1e-12)
        weight[is_easy] = -easy.length_penalty * np.clip(easiness, 0.0, 1.0)
        weight[is_hard] = hard.length_bonus * np.clip(hardness, 0.0, 1.0)
        return weight


def fill_budget(sizes: Array, budget: int) -> Array:
    """Group sizes, in drawn order, that sum to exactly `budget`; each at least 2.

    Groups are taken whole while they fit. The next prompt gets what is left, a smaller group; a
    single rollout left over joins the last group. Where the prompts run out, the groups grow
    evenly. The result may be shorter than `sizes`: later prompts are not taken.
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    require(len(sizes), "prompts", 0, "there is nothing to fill the budget with")
    require(budget >= 2, "budget", budget, "must hold at least one group of 2")
    require((sizes >= 2).all(), "group size", int(sizes.min()), "must be at least 2")
    total = np.cumsum(sizes)
    whole = int(np.searchsorted(total, budget, side="right"))
    rest = budget - (int(total[whole - 1]) if whole else 0)
    filled = sizes[:whole].copy()
    if rest >= 2 and whole < len(sizes):
        return np.append(filled, rest)
    if whole == len(sizes):
        filled += rest // whole
        filled[: rest % whole] += 1
    elif rest:
        filled[-1] += rest
    return filled
