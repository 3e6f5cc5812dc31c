"""How a StepPlan is put together: draw, tiers, budget, hints, replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from dare.config import CurriculumConfig
from dare.curriculum.arrays import Array, compact
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators.build import Services
from dare.curriculum.plan import StepPlan
from dare.curriculum.prompts import PromptTable
from dare.curriculum.rollouts import Conditioning
from dare.curriculum.selection import gumbel_top_k
from dare.curriculum.tiers import Tier, TierPolicy, fill_budget
from dare.errors import require


class Planner:
    """Turns drawn rows into plans. It reads the buffer and changes nothing."""

    def __init__(
        self,
        config: CurriculumConfig,
        prompts: PromptTable,
        buffer: RolloutBuffer,
        tiers: TierPolicy,
        services: Services,
    ) -> None:
        self._config, self._prompts, self._buffer = config, prompts, buffer
        self._tiers, self._services = tiers, services

    @property
    def most_prompts(self) -> int:
        """Prompts that one step can use at the most: what a draw must supply."""
        smallest = int(self._tiers.group_size.min())
        fit = -(-self._config.rollout_budget // smallest)
        return min(fit, self._config.prompts_per_step or fit)

    @property
    def usual_prompts(self) -> int:
        """Prompts that a step of medium groups takes."""
        config = self._config
        fresh = config.fresh_share * config.rollout_budget
        fit = max(1, round(fresh / config.medium.group_size))
        return min(fit, config.prompts_per_step or fit)

    def probe(self, step: int, rows: Array, difficulty_P: Array, size: int) -> StepPlan:
        """Plain groups of equal size, for the estimate alone."""
        groups = np.full(len(rows), size)
        return self._plan(step, "probe", rows, difficulty_P[rows], groups, groups, alike=True)

    def first(
        self, step: int, rows: Array, difficulty_P: Array, size: int, rng: np.random.Generator
    ) -> StepPlan:
        """As many of `rows` as fill a step with plain groups of this size; uniform draws fill up.

        Nothing is known yet that a tier could go by: all get the medium treatment.
        """
        budget, count = self._config.rollout_budget, len(self._prompts)
        if self._config.prompts_per_step:
            budget = min(budget, self._config.prompts_per_step * size)
        rows = rows[: -(-budget // size)]
        missing = -(-budget // size) - len(rows)
        drawn = rng.choice(count, size=min(count, missing + len(rows)), replace=False)
        rows = np.concatenate([rows, drawn[~np.isin(drawn, rows)][:missing]])
        groups = fill_budget(np.full(len(rows), size), budget)
        rows = rows[: len(groups)]
        return self._plan(step, "train", rows, difficulty_P[rows], groups, groups, alike=True)

    def train(
        self,
        step: int,
        rows: Array,
        difficulty_P: Array,
        groups: Array,
        room: int,
        mixed: Callable[[int], Array],
    ) -> StepPlan:
        """The drawn rows, cut where their groups and those of the buffer fill R exactly.

        `groups` lists buffer groups in order of preference; they get at most `room` rollouts. With
        `prompts_per_step` the rows may be fewer, and no group grows to make up for it. `mixed(n)`
        is the chance of every prompt that a group of n is mixed.
        """
        groups, held = self._affordable(groups, room)
        budget = self._config.rollout_budget - held
        tier = self._tiers.assign(difficulty_P[rows])
        sizes = self._tiers.group_size[tier]
        if self._config.prompts_per_step:
            budget = min(budget, int(sizes.sum()))
        if self._config.group_sizes == "value" and budget:
            sizes = self._by_value(rows, budget, mixed)
        else:
            sizes = fill_budget(sizes, budget) if budget else rows[:0]
        rows, tier = rows[: len(sizes)], tier[: len(sizes)]
        plain = self._tiers.plain(tier, sizes)
        return self._plan(step, "train", rows, difficulty_P[rows], sizes, plain, groups, held)

    def _by_value(self, rows: Array, budget: int, mixed: Callable[[int], Array]) -> Array:
        """Sizes of as many groups as the budget holds of the usual size, for the first rows."""
        config = self._config
        least, most = config.smallest_group, config.largest_group
        count = min(len(rows), max(1, round(budget / config.medium.group_size)))
        if not count * least <= budget <= count * most:
            return fill_budget(np.full(len(rows), config.medium.group_size), budget)
        chance = np.column_stack([mixed(size)[rows[:count]] for size in range(least, most + 1)])
        return allocate(chance, least, budget)

    def replay(self, step: int, rng: np.random.Generator) -> tuple[Array, int]:
        """Groups to replay, in drawn order, and the rollouts they may fill (METHOD 8)."""
        budget, settings = self._config.rollout_budget, self._config.replay
        room = budget - round(self._config.fresh_share * budget)
        groups = self._buffer.replayable() if room else np.empty(0, np.int64)
        facts = self._buffer.group_facts(groups)
        allowed = np.ones(len(groups), bool)
        if settings.max_age:
            allowed &= step - facts["step"] <= settings.max_age
        if settings.times:
            allowed &= facts["replayed"] < settings.times
        groups = groups[allowed]
        if not settings.priority:
            return rng.permutation(groups), room
        log_weight = settings.priority * np.log(facts["advantage"][allowed])
        return groups[gumbel_top_k(log_weight, len(groups), rng)], room

    def with_own(
        self, groups: Array, room: int, rows: Array, step: int, rng: np.random.Generator
    ) -> Array:
        """Replayed groups of earlier steps, what `room` holds, then those of `rows` in this one.

        The latter in random order: where they are more than fit, the order of the data, which
        groups have in the buffer, would train on its first prompts more often than on its last.
        """
        now = self._buffer["step"] == step
        own = np.unique(self._buffer["group"][now & np.isin(self._buffer["prompt"], rows)])
        own = rng.permutation(own)
        own = own[: self._config.prompts_per_step or None]
        older = groups[~np.isin(groups, self._buffer["group"][now])]
        return np.concatenate([self._affordable(older, room)[0], own])

    def beside(self, kept: Array, rows: Array) -> Array:
        """Drawn rows that fill up a step with `kept` in it; those again if there are no others."""
        others = rows[~np.isin(rows, kept)]
        rows = others if len(others) else rows
        prompts = self._config.prompts_per_step
        return rows[: max(0, prompts - len(kept))] if prompts else rows

    def _affordable(self, groups: Array, room: int) -> tuple[Array, int]:
        """The groups, in order, that fit into `room` rollouts, and how many they hold."""
        if not len(groups):
            return groups, 0
        known, inverse = compact(self._buffer["group"])
        size = np.bincount(inverse)[np.searchsorted(known, groups)]
        within = np.cumsum(size) <= room
        if self._config.rollout_budget - size[within].sum() == 1:  # no room for a group of one
            within[np.flatnonzero(within)[-1]] = False
        return groups[within], int(size[within].sum())

    def _plan(
        self,
        step: int,
        kind: Literal["train", "probe"],
        rows: Array,
        difficulty: Array,
        sizes: Array,
        plain: Array,
        replay: Array | None = None,
        held: int = 0,
        *,
        alike: bool = False,
    ) -> StepPlan:
        tiers = self._tiers
        tier = np.full(len(rows), Tier.MEDIUM, np.uint8) if alike else tiers.assign(difficulty)
        extra = sizes - plain
        conditioning, hints = self._help(rows, extra)
        return StepPlan(
            step=step,
            kind=kind,
            prompt_P=rows,
            ids=self._prompts.ids(rows),
            difficulty_P=difficulty,
            tier_P=tier,
            plain_P=plain,
            extra_P=extra,
            extra_conditioning_P=conditioning,
            max_tokens_P=tiers.max_tokens[tier],
            clip_low_P=tiers.clip_low[tier],
            clip_high_P=tiers.clip_high[tier],
            shaping_P=tiers.shaping_weight(tier, difficulty),
            hints=hints,
            replay=np.empty(0, np.int64) if replay is None else replay,
            replay_rollouts=held,
        )

    def _help(self, rows: Array, extra: Array) -> tuple[Array, list[list[str]]]:
        """How the extra rollouts of each prompt are conditioned, and its hint (METHOD 6, 7)."""
        rule = self._config.hard.extra
        without = Conditioning.PLAIN if rule.endswith("plain") else Conditioning.THINK_LONGER
        conditioning = np.full(len(rows), without, np.uint8)
        hints: list[list[str]] = [[] for _ in rows]
        if not rule.startswith("hint"):
            return conditioning, hints
        helped = np.flatnonzero(extra)
        successes = self._successes(rows[helped])
        for place in helped.tolist():
            hints[place] = self._hint(int(rows[place]), successes.get(int(rows[place])))
            if hints[place]:
                conditioning[place] = Conditioning.HINTED
        return conditioning, hints

    def _successes(self, rows: Array) -> dict[int, int]:
        """Per prompt the position of its newest plain success in the buffer."""
        buffer = self._buffer
        right = buffer.plain & (buffer["success"] == 1.0)
        found = np.flatnonzero(right & np.isin(buffer["prompt"], rows))
        return dict(zip(buffer["prompt"][found].tolist(), found.tolist(), strict=True))

    def _hint(self, row: int, position: int | None) -> list[str]:
        """Fragments of a past success that do not give the answer, or the program, away.

        Empty without a success, and where the truth of the prompt is neither of the two.
        """
        prompts, decode, hint = self._prompts, self._services.decode, self._services.hint
        answer = None if prompts.answers is None else prompts.answers[row]
        known = answer or prompts.judged_by_tests(row)
        if position is None or decode is None or hint is None or not known:
            return []
        text = decode(self._buffer.batch([position]).tokens)
        shown = "" if prompts.texts is None else prompts.texts[row]
        return hint(text, answer or None, shown) if text.strip() else []


def allocate(chance_QN: Array, least: int, budget: int) -> Array:
    """Group sizes that sum to `budget` and have the greatest sum of chances.

    A group teaches when it has a right and a wrong rollout. The chance of that grows with the
    group, by less with each rollout, so that giving every next rollout to the group whose chance
    grows most is the best division of all.

    `chance_QN[q, j]` is the chance that a group of `least + j` rollouts of prompt q is mixed; each
    row grows by less and less. No group is larger than the table is wide.
    """
    count, width = chance_QN.shape
    fix = f"must be between {count * least} and {count * (least + width - 1)}"
    good = count * least <= budget <= count * (least + width - 1)
    require(good, "budget", budget, f"{fix} for {count} prompts")
    gain = np.diff(chance_QN, axis=1)
    # Of equal gains the one that makes the smaller group comes first, then the earlier prompt.
    prompt, place = np.divmod(np.arange(gain.size), max(gain.shape[1], 1))
    order = np.lexsort((prompt, place, -gain.ravel()))[: budget - count * least]
    return least + np.bincount(prompt[order], minlength=count)
