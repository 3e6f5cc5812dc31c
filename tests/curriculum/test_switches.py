"""Every part of the method has its own switch, and any combination of them plans and resumes."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import describe, examples, roll, run, scorer, small, table, truth
from worlds import services as decoding

from dare.config import (
    ESTIMATORS,
    AdvantageConfig,
    CurriculumConfig,
    EstimatorConfig,
    HardConfig,
    SelectionConfig,
)
from dare.curriculum import Curriculum, Services, StepPlan
from dare.curriculum.estimators import Measured, Replies
from dare.curriculum.tiers import Tier
from dare.teacher.head import TeacherHead

COUNT = 60
PROBING = ("current-fr", "dynamic", "greso")  # they train on what their probes found


def choices(section: type[Any], name: str) -> tuple[str, ...]:
    """The words that a setting may have."""
    return get_args(get_type_hints(section)[name])


SWITCHES: dict[str, Any] = {
    "estimator.name": ESTIMATORS,
    "estimator.below_threshold": choices(EstimatorConfig, "below_threshold"),
    "prompts_per_step": (0, 5),
    "selection.name": choices(SelectionConfig, "name"),
    "selection.explore": choices(SelectionConfig, "explore"),
    "selection.eta": (0.0, 0.2),
    "hard.extra": choices(HardConfig, "extra"),
    "advantage.scale_rewards": choices(AdvantageConfig, "scale_rewards"),
    "advantage.shape_alone": (False, True),
    "cold_start.references": (0, 16),
    "easy.use": (False, True),
    "hard.use": (False, True),
    "tiers": (False, True),
    "fresh_share": (1.0, 0.5),
}
COMBINATIONS = st.fixed_dictionaries({k: st.sampled_from(v) for k, v in SWITCHES.items()})


def services() -> Services:
    """All that any estimator could ask for."""
    given, rng = decoding(COUNT), np.random.default_rng(3)
    entropy, length = rng.random(COUNT), rng.integers(3, 30, COUNT).astype(float)
    lowest = -5 * rng.random(COUNT)
    solutions = np.column_stack([length, lowest - 0.3, lowest, 0.1 * lowest, lowest, lowest])
    return Services(
        decode=given.decode,
        embeddings=given.embeddings,
        states=given.states,
        lengths=length,
        teacher=TeacherHead.init(6, 4),
        entropy=lambda rows: Measured(entropy[rows], 64 * len(rows)),
        ask=lambda rows: Replies([f"{row / COUNT:.2f}" for row in rows], 3 * len(rows)),
        solutions=lambda rows: Measured(solutions[rows], int(length[rows].sum())),
    )


def built(combination: dict[str, Any]) -> Curriculum:
    config = small("dare", **{"estimator.references": 8, "estimator.max_probes": 3, **combination})
    return Curriculum(table(COUNT), config, services())


def check_tiers(plan: StepPlan, config: CurriculumConfig) -> None:
    """A tier gets its treatment where it is switched on, and the medium one elsewhere."""
    kinds = {Tier.EASY: config.easy, Tier.MEDIUM: config.medium, Tier.HARD: config.hard}
    assert config.tiers or set(plan.tier_P.tolist()) <= {Tier.MEDIUM}
    for place, number in enumerate(plan.tier_P.tolist()):
        tier, d = Tier(number), plan.difficulty_P[place]
        used = config.tiers and tier != Tier.MEDIUM and bool(getattr(kinds[tier], "use", True))
        rules = kinds[tier] if used else config.medium
        assert plan.max_tokens_P[place] == round(config.max_tokens * rules.max_tokens_ratio)
        assert plan.clip_high_P[place] == rules.clip_high
        helped = max(0, plan.group_size_P[place] - config.hard.plain)
        assert plan.extra_P[place] == (helped if used and tier == Tier.HARD else 0)
        sign = {Tier.EASY: -1.0, Tier.HARD: 1.0}.get(tier, 0.0) if used else 0.0
        assert np.sign(plan.shaping_P[place]) == (0.0 if d in (0.3, 0.8) else sign)


def check_replay(plan: StepPlan, curriculum: Curriculum) -> None:
    """Groups of earlier steps are replayed where the switch says so and there are any."""
    config, buffer = curriculum.config, curriculum.buffer
    named = np.isin(buffer["group"], plan.replay)
    older = int((buffer["step"][named] < curriculum.step).sum())
    room = config.rollout_budget - round(config.fresh_share * config.rollout_budget)
    assert older <= room
    if config.estimator.name not in PROBING:
        assert plan.replay_rollouts <= room
    earlier = buffer["group"][buffer["step"] < curriculum.step]
    free = curriculum.cold_start.finished  # steps of references are all new
    if free and room >= config.hard.group_size and np.isin(buffer.replayable(), earlier).any():
        assert plan.replay_rollouts > 0
        assert config.estimator.name not in PROBING or older > 0


def check_size(plan: StepPlan, curriculum: Curriculum) -> None:
    """R is filled exactly; with B, at most B whole groups of this step are in it."""
    config, buffer = curriculum.config, curriculum.buffer
    rollouts = plan.fresh_rollouts + plan.replay_rollouts
    assert len(set(plan.prompt_P.tolist())) == len(plan.prompt_P)
    if not config.prompts_per_step:
        assert rollouts == config.rollout_budget
        return
    groups = len(plan.prompt_P)
    if config.estimator.name in PROBING:
        now = np.isin(buffer["group"], plan.replay) & (buffer["step"] == curriculum.step)
        groups += len(np.unique(buffer["group"][now]))
    assert groups <= config.prompts_per_step
    assert rollouts <= config.rollout_budget
    if rollouts < config.rollout_budget and curriculum.step:  # nothing but B has cut it
        assert groups == config.prompts_per_step
        whole = curriculum.tiers.group_size[plan.tier_P]
        assert plan.group_size_P.tolist() == whole.tolist()


@given(COMBINATIONS)
@examples(100)
def test_any_combination_plans_trains_and_resumes(combination: dict[str, Any]) -> None:
    curriculum = built(combination)
    config, fail = curriculum.config, truth(curriculum.prompts)
    for name, value in combination.items():
        section, _, key = name.rpartition(".")
        assert getattr(getattr(config, section) if section else config, key) == value
    if config.estimator.name in ("entropy", "judge"):
        curriculum.refresh()
    while curriculum.step < 3:
        plan = curriculum.plan()
        if plan.train:
            check_tiers(plan, config)
            check_replay(plan, curriculum)
            check_size(plan, curriculum)
        batch = curriculum.observe(roll(plan, curriculum.prompts, fail))
        if batch is not None:
            assert len(batch.rollouts) == plan.fresh_rollouts + plan.replay_rollouts
            assert np.isfinite(batch.advantage_R).all()
            assert batch.weight_R.sum() == pytest.approx(1)
            curriculum.refresh(scorer, 200)
    assert ((curriculum.difficulty() >= 0) & (curriculum.difficulty() <= 1)).all()
    again = built(combination)
    again.load_state_dict(curriculum.state_dict())
    assert describe(again.plan()) == describe(curriculum.plan())


@pytest.mark.parametrize("share", [0.5, 0.75])
def test_the_oracle_replays_older_groups_beside_those_of_its_probes(share: float) -> None:
    config = small("current-fr", fresh_share=share, **{"estimator.max_probes": 3})
    curriculum = Curriculum(table(COUNT), config, services())
    run(curriculum, 2, np.full(COUNT, 0.5))
    while not (plan := curriculum.plan()).train:
        curriculum.observe(roll(plan, curriculum.prompts, np.full(COUNT, 0.5)))
    step = curriculum.buffer["step"][np.isin(curriculum.buffer["group"], plan.replay)]
    assert 0 < int((step < 2).sum()) <= round((1 - share) * 64)
    assert (step == 2).any()
    assert plan.fresh_rollouts + plan.replay_rollouts == 64


def test_settings_that_contradict_each_other_are_refused_by_name() -> None:
    for changes, words in (
        ({"easy.below": 0.9}, "hard.above"),
        ({"hard.plain": 40}, "hard.group_size"),
        ({"rollout_budget": 8, "fresh_share": 0.5}, "fresh_share"),
        ({"rollout_budget": 16, "fresh_share": 0.5, "tiers": True}, "fresh_share"),
    ):
        with pytest.raises(ValueError, match=words):
            CurriculumConfig.preset("dare", **changes)
