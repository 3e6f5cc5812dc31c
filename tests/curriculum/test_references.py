"""The cold start over the first steps: references are trained on, or probed as in the paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from worlds import frozen, roll, run, same, services, small, table, truth

from dare import Curriculum, CurriculumConfig, PromptTable
from dare.curriculum import Estimator, Outcome, Services, Tier
from dare.curriculum.arrays import keyed_rng
from dare.curriculum.coldstart import choose_references, interpolate
from dare.curriculum.estimators import Measured
from dare.curriculum.estimators.dare.features import STATISTICS

COUNT = 90


def make(preset: str = "classic", count: int = COUNT, **changes: Any) -> Curriculum:
    return Curriculum(table(count), small(preset, **changes), services(count))


def references(curriculum: Curriculum) -> list[int]:
    """Who should be in the reference set."""
    config, count = curriculum.config, len(curriculum.prompts)
    rng = keyed_rng(config.seed, 0, "references")
    found: list[int] = choose_references(count, config.cold_start.references, rng).tolist()
    return found


def play(curriculum: Curriculum) -> Any:
    """One plan and its outcome."""
    plan = curriculum.plan()
    rollouts = roll(plan, curriculum.prompts, truth(curriculum.prompts))
    return plan, rollouts, curriculum.observe(rollouts)


@pytest.mark.parametrize("sigma", [1.0, 0.25])
@pytest.mark.parametrize("budget", [64, 67, 96, 129])
def test_the_first_steps_train_on_the_references(budget: int, sigma: float) -> None:
    curriculum = make(rollout_budget=budget, fresh_share=sigma, **{"cold_start.references": 20})
    wanted, met, steps = references(curriculum), [], 0
    while not curriculum.cold_start.finished:
        plan, rollouts, result = play(curriculum)
        assert plan.kind == "train"
        assert plan.step == steps
        assert (plan.tier_P == Tier.MEDIUM).all()
        assert plan.plain_P.tolist() == plan.group_size_P.tolist()
        assert (plan.shaping_P == 0).all()
        # All of the budget, all of it new, in groups of the given size but the last.
        assert plan.fresh_rollouts == len(rollouts) == len(result.rollouts) == budget
        assert plan.replay_rollouts == 0
        assert result.fresh_R.all()
        assert (plan.group_size_P[:-1] == 8).all()
        assert 2 <= plan.group_size_P[-1] <= 9
        assert len(set(plan.ids)) == len(plan.ids)
        met += [row for row in plan.prompt_P.tolist() if row in wanted and row not in met]
        steps += 1
    assert met == wanted
    assert steps == -(-len(wanted) // (len(plan.prompt_P)))
    assert curriculum.step == steps
    kinds = [described[1] for described in run(curriculum, 3)]
    assert kinds == ["train"] * 3


def test_no_rollout_is_spent_on_the_estimate_alone() -> None:
    trained, probed = make(), make(**{"cold_start.train": False})
    for curriculum, extra in ((trained, 0), (probed, 16 * 8)):
        spent = 0
        while curriculum.step < 5:
            plan, rollouts, _ = play(curriculum)
            spent += len(rollouts) + plan.replay_rollouts
        assert spent == 5 * 64 + extra


@pytest.mark.parametrize("near", [True, False])
def test_each_of_them_sets_the_prior_of_all_prompts(near: bool) -> None:
    given = services(COUNT if near else 0)
    config = small("classic", **{"cold_start.temperature": 2.0, "cold_start.references": 20})
    curriculum = Curriculum(table(COUNT), config, given)
    wanted, failed = set(references(curriculum)), {}
    while not curriculum.cold_start.finished:
        plan, rollouts, _ = play(curriculum)
        for row in set(plan.prompt_P.tolist()) & wanted - set(failed):
            failed[row] = 1 - float(rollouts.reward_R[rollouts.prompt_R == row].mean())
        rows, rates = np.array(list(failed)), np.array(list(failed.values()))
        if near:
            z = np.asarray(given.embeddings, np.float32)
            expected = interpolate(z, z[rows], rates, 2.0)
        else:
            expected = np.full(COUNT, rates.mean())
        unseen = curriculum.visits_P == 0
        assert curriculum.difficulty()[unseen] == pytest.approx(expected[unseen], abs=1e-6)
    assert set(failed) == wanted


def test_the_paper_rolls_its_references_out_beforehand() -> None:
    curriculum = make("paper")
    plan, _, result = play(curriculum)
    assert plan.kind == "probe"
    assert plan.prompt_P.tolist() == references(curriculum)
    assert result is None
    assert curriculum.step == 0
    assert curriculum.cold_start.finished
    assert curriculum.plan().kind == "train"
    assert not CurriculumConfig.preset("paper").cold_start.train
    assert CurriculumConfig.preset("dare").cold_start.train


def full(count: int) -> Services:
    """Embeddings, states and solutions: all that the first steps read."""
    value = np.random.default_rng(3).normal(size=(count, STATISTICS)) - 4.0
    value[:, 0] = 5
    base = services(count)
    return Services(
        decode=base.decode,
        embeddings=base.embeddings,
        states=base.states,
        solutions=lambda rows: Measured(value[rows], 5 * len(rows)),
    )


@pytest.mark.parametrize(
    ("preset", "sigma"), [("classic", 1.0), ("classic", 0.25), ("dare", 1.0), ("dare", 0.25)]
)
def test_a_resume_in_the_middle_of_it_makes_the_same_plans(
    preset: str, sigma: float, tmp_path: Path
) -> None:
    config = small(preset, fresh_share=sigma, **{"cold_start.references": 30})
    whole = Curriculum(table(COUNT), config, full(COUNT))
    for _ in range(6):
        state = whole.state_dict()
        arrays = {name: np.ascontiguousarray(array) for name, array in state["arrays"].items()}
        save_file(arrays, tmp_path / "arrays")
        meta = json.loads(json.dumps(state["meta"], allow_nan=False))
        again = Curriculum(table(COUNT), config, full(COUNT))
        again.load_state_dict({"arrays": load_file(tmp_path / "arrays"), "meta": meta})
        assert meta["cold"] == (preset == "classic" and whole.step < 4)
        assert same(again.state_dict()["arrays"], whole.state_dict()["arrays"])
        copy = Curriculum(table(COUNT), config, full(COUNT))
        copy.load_state_dict(frozen(state))
        assert run(again, 7) == run(copy, 7)
        assert same(again.state_dict()["arrays"], copy.state_dict()["arrays"])
        run(whole, 1)


def test_new_data_in_the_middle_of_it_goes_on() -> None:
    old = make(**{"cold_start.references": 30})
    run(old, 2)
    texts = [f"question {i}" for i in range(40, 140)]
    prompts = PromptTable.from_columns(texts, answers=texts)
    new = Curriculum(prompts, old.config, services(100))
    new.load_state_dict(old.state_dict(), new_data=True)
    rows, rates = new.cold_start.rates
    known = dict(zip(old.prompts.ids(), range(COUNT), strict=True))
    then = dict(zip(*(values.tolist() for values in old.cold_start.rates), strict=True))
    assert len(rows)
    assert [then[known[name]] for name in prompts.ids(rows)] == rates.tolist()
    run(new, 4)
    assert new.cold_start.finished


def test_more_data_does_not_begin_a_finished_cold_start_again() -> None:
    old = make(count=20, **{"cold_start.references": 256})
    run(old, 6)
    assert old.cold_start.finished
    new = Curriculum(table(COUNT), old.config, services(COUNT))
    new.load_state_dict(old.state_dict(), new_data=True)
    assert new.cold_start.finished


@pytest.mark.parametrize("preset", ["classic", "dare"])
@pytest.mark.parametrize("count", [1, 2, 5, 10, 17])
def test_fewer_prompts_than_references(count: int, preset: str) -> None:
    curriculum = make(preset, count, **{"cold_start.references": 256})
    for _ in range(6):
        plan, _, result = play(curriculum)
        assert plan.train
        assert len(result.rollouts) == plan.fresh_rollouts + plan.replay_rollouts == 64
        assert len(set(plan.ids)) == len(plan.ids)
    assert curriculum.cold_start.finished
    assert curriculum.coverage == 1.0


@pytest.mark.parametrize("train", [True, False])
def test_without_references_or_use_for_them_there_is_no_cold_start(train: bool) -> None:
    for curriculum in (
        make(**{"cold_start.references": 0, "cold_start.train": train}),
        make("dare", **{"cold_start.train": train}),
        make("previous-fr", **{"cold_start.references": 16, "cold_start.train": train}),
    ):
        assert curriculum.cold_start.finished
        assert curriculum.plan().train


def test_references_without_any_reward_leave_every_prompt_in_the_middle() -> None:
    curriculum = make(**{"cold_start.references": 8})
    plan = curriculum.plan()
    assert plan.train
    lost = roll(plan, curriculum.prompts, np.zeros(COUNT), unscored=lambda row: True)
    curriculum.observe(lost)
    assert curriculum.difficulty().tolist() == [0.5] * COUNT
    assert curriculum.cold_start.finished


class LastGroup(Estimator):
    """Believes the last group, and the prior until there is one."""

    def observe(self, outcome: Outcome) -> None:
        self._arrays["difficulty"][outcome.prompt_Q] = outcome.failures_Q / outcome.trials_Q


def test_a_later_prior_does_not_undo_what_an_estimator_has_learnt() -> None:
    curriculum = make(**{"estimator.name": f"{__name__}:LastGroup", "cold_start.references": 24})
    told: dict[int, float] = {}
    while not curriculum.cold_start.finished:
        plan, rollouts, _ = play(curriculum)
        for row in plan.prompt_P.tolist():
            told[row] = 1 - float(rollouts.reward_R[rollouts.prompt_R == row].mean())
    difficulty = curriculum.difficulty()
    assert difficulty[list(told)] == pytest.approx(list(told.values()))
    unseen = curriculum.visits_P == 0
    assert (difficulty[unseen] == curriculum.cold_start.prior()[unseen]).all()
