"""Every preset takes a few steps of a simulated learner, and says what it spends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import SimulatedLearner, simulate

from dare.config import CurriculumConfig, acting_changes, preset_names
from dare.curriculum import Curriculum

WITHOUT_A_MODEL = [n for n in preset_names() if n not in ("dots", "edco", "llm-judge")]


def small(name: str, **changes: Any) -> CurriculumConfig:
    config = CurriculumConfig.preset(name)
    few = {"cold_start.references": 16} if config.cold_start.references else {}
    few = {"rollout_budget": 128, "estimator.max_probes": 4, **few, **changes}
    return config.replace(acting_changes(name, few))


@pytest.mark.parametrize("name", WITHOUT_A_MODEL)
def test_a_preset_trains_and_two_runs_are_one(name: str) -> None:
    one, two = (simulate(small(name), SimulatedLearner(300), 6, every=3) for _ in range(2))
    assert one["step"].tolist() == [0, 3, 6]
    assert one["accuracy"][-1] > one["accuracy"][0]
    for column in one.keys() - {"seconds"}:
        np.testing.assert_array_equal(one[column], two[column])


def test_dynamic_sampling_generates_more_than_it_trains_on_and_greso_less_of_it() -> None:
    spent = {}
    for name in ("grpo", "dapo", "greso"):
        config = small(name, **{"estimator.max_probes": 16})
        found = simulate(config, SimulatedLearner(300, rate=0.0, drift=0.0), 30, every=30)
        spent[name] = found["generated"][-1]
        assert found["varied"][-1] == 1.0 or name == "grpo"
    assert spent["grpo"] == 30 * 128
    assert spent["dapo"] > 1.5 * spent["grpo"]
    # From the second pass over the 300 prompts on, those that taught nothing are mostly skipped.
    assert spent["greso"] < 0.9 * spent["dapo"]


@pytest.mark.parametrize("name", ["paper", "paper-release"])
def test_the_paper_takes_its_prompts_with_whole_groups_and_scores_all_it_holds(name: str) -> None:
    config = small(name, prompts_per_step=10, **{"selection.kappa": 4})
    learner = SimulatedLearner(200)
    curriculum = Curriculum(learner.table(), config, learner.services())
    sizes = set()
    while curriculum.step < 8:
        plan = curriculum.plan()
        rollouts = learner.generate(plan, plan.step)
        batch = curriculum.observe(rollouts)
        if batch is None:
            continue
        assert len(plan.prompt_P) == 10
        assert plan.group_size_P.tolist() == [(4, 8, 16)[tier] for tier in plan.tier_P]
        assert plan.fresh_rollouts == plan.group_size_P.sum() <= 128
        sizes.add(plan.fresh_rollouts)
        learner.learn(batch)
        budget = config.estimator.refresh_budget(int(rollouts.length_R.sum()))
        curriculum.refresh(learner.score, budget)
        plain = curriculum.buffer.plain
        assert (curriculum.buffer["scored_step"][plain] == curriculum.step).all()
    assert len(sizes) > 1  # the rollouts of a step vary
    assert curriculum.visits_P.sum() == 16 + 8 * 10


def test_the_rollout_budget_still_bounds_a_step_of_so_many_prompts() -> None:
    learner = SimulatedLearner(200)
    config = small("paper", prompts_per_step=100, **{"cold_start.references": 0})
    plan = Curriculum(learner.table(), config, learner.services()).plan()
    assert plan.fresh_rollouts == 128
    few = small("paper", prompts_per_step=100, rollout_budget=16384)
    few = few.replace({"cold_start.references": 0})
    tiny = SimulatedLearner(20)
    plan = Curriculum(tiny.table(), few, tiny.services()).plan()
    assert len(plan.prompt_P) == 20
    assert (plan.group_size_P == 8).all()  # no group grows to fill R
