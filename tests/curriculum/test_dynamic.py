"""Dynamic sampling and GRESO against plain loops over the published rules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from worlds import describe, examples, roll, run, services, small, table, truth

from dare.config import CurriculumConfig, EstimatorConfig
from dare.curriculum import Curriculum
from dare.curriculum.estimators import DynamicEstimator, GresoEstimator, Outcome
from dare.curriculum.estimators.build import _groups_of_a_step
from dare.curriculum.estimators.dynamic import adjusted, chance_to_roll_out

GROUP = 8


def outcome(step: int, failures: dict[int, int]) -> Outcome:
    """prompt -> failures of its group of 8."""
    rows = sorted(failures)
    found = np.array([float(failures[row]) for row in rows])
    return Outcome(step, np.array(rows, np.int64), np.full(len(rows), float(GROUP)), found)


def mixed(failures: int) -> bool:
    return 0 < failures < GROUP


# --- dynamic sampling -----------------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(1, 60), st.integers(1, 12), st.integers(1, 6))
@examples(60)
def test_refills_are_as_large_as_the_last_share_of_mixed_groups_asks_for(
    seed: int, count: int, wanted: int, max_probes: int
) -> None:
    rng = np.random.default_rng(seed)
    factor, margin = 1.0 + rng.random(), 1.0 + rng.random()
    config = EstimatorConfig(probe_factor=factor, refill_margin=margin, max_probes=max_probes)
    estimator = DynamicEstimator(count, wanted, config)
    most = math.ceil(factor * wanted)
    for step in range(3):
        tried: dict[int, int] = {}
        size, probes = most, 0
        while (rows := estimator.probe(step, rng)) is not None:
            probes += 1
            assert len(rows) == min(size, count - len(tried))
            assert not set(rows.tolist()) & set(tried)
            new = {int(row): int(rng.integers(0, GROUP + 1)) for row in rows}
            estimator.observe(outcome(step, new))
            tried |= new
            good = sum(mixed(f) for f in new.values())
            missing = wanted - sum(mixed(f) for f in tried.values())
            size = most
            if good:
                size = min(most, math.ceil(margin * missing * len(new) / good))
        kept = sorted(row for row, failed in tried.items() if mixed(failed))
        assert estimator.keep(step).tolist() == kept
        assert len(kept) >= wanted or len(tried) == count or probes == max_probes
        assert estimator.metrics()["groups_tried"] == len(tried)
        assert estimator.metrics()["groups_mixed"] == pytest.approx(len(kept) / len(tried))


@pytest.mark.parametrize("preset", ["dapo", "greso"])
def test_a_step_trains_on_mixed_groups_alone_and_all_that_was_generated_is_seen(
    preset: str,
) -> None:
    curriculum = Curriculum(table(200), small(preset), services())
    fail, seen = truth(curriculum.prompts), 0
    while curriculum.step < 4:
        plan = curriculum.plan()
        rollouts = roll(plan, curriculum.prompts, fail)
        batch = curriculum.observe(rollouts)
        seen += len(rollouts)
        if batch is None:
            continue
        assert batch.varied_N.all()
        assert len(batch.rollouts) == 64
        assert batch.fresh_R.all()  # sampled in this step, probes included
        assert (batch.clip_high_R == (0.28 if preset == "dapo" else 0.2)).all()
        assert len(np.unique(batch.rollouts.prompt_R)) == 8
    assert seen > 4 * 64
    assert seen == curriculum.visits_P.sum() * GROUP


@pytest.mark.parametrize("preset", ["dapo", "greso"])
def test_which_surplus_groups_are_dropped_does_not_depend_on_the_order_of_the_data(
    preset: str,
) -> None:
    count, steps, first, kept = 64, 40, np.zeros(4), np.zeros(4)
    for seed in range(6):
        config = small(preset, seed=seed, **{"estimator.probe_factor": 4.0})
        curriculum = Curriculum(table(count), config, services())
        again = Curriculum(table(count), config, services())
        for _ in range(steps):
            step = curriculum.step
            mixed_rows: set[int] = set()
            while curriculum.step == step:
                plan = curriculum.plan()
                assert describe(plan) == describe(again.plan())  # no process draws otherwise
                rollouts = roll(plan, curriculum.prompts, np.full(count, 0.5))
                batch = curriculum.observe(rollouts)
                again.observe(rollouts)
                if batch is None:
                    won = np.bincount(rollouts.prompt_R, rollouts.reward_R, minlength=count)
                    mixed_rows |= set(np.flatnonzero((won > 0) & (won < GROUP)).tolist())
                else:
                    rows = np.unique(batch.rollouts.prompt_R)
                    assert len(rows) == 8 < len(mixed_rows)
                    kept += np.bincount(rows * 4 // count, minlength=4)
            first += np.bincount(np.array(sorted(mixed_rows)) * 4 // count, minlength=4)
    assert stats.chisquare(kept, first * kept.sum() / first.sum()).pvalue > 1e-3


@pytest.mark.parametrize("preset", ["dapo", "greso"])
def test_without_a_mixed_group_the_refills_end_and_the_step_goes_on(preset: str) -> None:
    config = small(preset, **{"estimator.max_probes": 3})
    curriculum = Curriculum(table(100), config, services())
    kinds = [plan[1] for plan in run(curriculum, 2, np.ones(100))]
    assert kinds == ["probe"] * 3 + ["train"] + ["probe"] * 3 + ["train"]


@pytest.mark.parametrize("preset", ["dapo", "greso"])
@pytest.mark.parametrize("stop", range(7))
def test_a_resume_at_any_probe_gives_the_same_draws(preset: str, stop: int) -> None:
    def made() -> Curriculum:
        return Curriculum(table(24), small(preset), services())

    whole, fail = made(), truth(table(24))
    fail = np.where(fail < 0.5, 0.02, 0.98)  # few groups are mixed: many probes, many passes
    for _ in range(stop):
        whole.observe(roll(whole.plan(), whole.prompts, fail))
    whole.plan()  # asked for, not yet rolled out
    again = made()
    again.plan()
    again.load_state_dict(whole.state_dict())
    for _ in range(12):
        assert describe(whole.plan()) == describe(again.plan())
        for curriculum in (whole, again):
            curriculum.observe(roll(curriculum.plan(), curriculum.prompts, fail))
    assert whole.metrics() == again.metrics()


# --- GRESO ----------------------------------------------------------------------------------------


def test_the_chance_to_be_rolled_out_by_hand() -> None:
    run_P = np.array([0, 1, 2, 3, -1, -2, 40, -40])
    expected = [1.0, 0.6, 0.36, 0.216, 0.3, 0.09, 0.01, 0.01]
    assert chance_to_roll_out(run_P, 0.6, 0.3).tolist() == pytest.approx(expected)


def test_exploration_moves_toward_its_target_and_stays_within_bounds() -> None:
    assert adjusted(0.5, 0.2, 0.1, 0.01) == pytest.approx(0.49)  # too many such groups: skip more
    assert adjusted(0.5, 0.1, 0.1, 0.01) == pytest.approx(0.49)
    assert adjusted(0.5, 0.05, 0.1, 0.01) == pytest.approx(0.51)
    assert adjusted(0.055, 0.9, 0.1, 0.01) == 0.05
    assert adjusted(0.945, 0.0, 0.1, 0.01) == 0.95


@given(st.integers(0, 10_000))
@examples(40)
def test_runs_and_exploration_are_those_of_a_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, wanted, target, start, by = 30, 4, 0.3, 0.5, 0.03
    config = EstimatorConfig(
        greso_target=target, greso_start=start, greso_step=by, probe_factor=2.0, max_probes=4
    )
    estimator = GresoEstimator(count, wanted, config)
    trace: dict[int, list[int]] = {row: [] for row in range(count)}
    easy = hard = start
    for step in range(30):
        groups: list[int] = []
        while (rows := estimator.probe(step, rng)) is not None:
            values = estimator.metrics()
            assert values["explore_easy"] == pytest.approx(easy)
            assert values["explore_hard"] == pytest.approx(hard)
            failures = rng.choice([0, 4, 8], size=len(rows), p=[0.4, 0.2, 0.4])
            new = dict(zip(rows.tolist(), failures.tolist(), strict=True))
            for row, failed in new.items():
                trace[row].append(failed)
            groups += new.values()
            estimator.observe(outcome(step, new))
        if estimator.metrics()["passes"] > 1:
            share = groups.count(0) / len(groups)
            easy += -by if share >= target / 3 else by
            share = groups.count(GROUP) / len(groups)
            hard += -by if share >= 2 * target / 3 else by
            easy, hard = (min(max(p, 0.05), 0.95) for p in (easy, hard))
        run = estimator.state_dict()["arrays"]["run"].tolist()
        for row, known in trace.items():
            z = 0
            for failed in reversed(known):
                if mixed(failed) or failed != known[-1]:
                    break
                z += 1
            sign = 0 if not known or mixed(known[-1]) else 1 if known[-1] == 0 else -1
            assert run[row] == sign * z


def test_the_first_pass_meets_every_prompt_once_and_moves_nothing() -> None:
    estimator = GresoEstimator(40, 4, EstimatorConfig(max_probes=1))
    rng, met = np.random.default_rng(0), []
    for step in range(10):
        rows = estimator.probe(step, rng)
        assert rows is not None
        met += rows.tolist()
        estimator.observe(outcome(step, dict.fromkeys(rows.tolist(), GROUP)))
        assert estimator.metrics()["explore_hard"] == 0.5
    assert sorted(met) == list(range(40))
    assert estimator.metrics()["passes"] == 1


def test_a_pass_skips_as_often_as_the_rule_says() -> None:
    """Of 3,000 prompts a third has no run, a third two groups all right, a third one all wrong."""
    count, config = 3000, EstimatorConfig(greso_start=0.6)
    estimator = GresoEstimator(count, count, config)
    state: Any = estimator.state_dict()
    state["arrays"]["run"] = np.repeat([0, 2, -1], count // 3)
    estimator.load_state_dict(state)
    # One pass has about 1 + 0.36 + 0.6 of a third: asking for fewer ends within it.
    rows = estimator.choose(np.arange(count), 1500, np.random.default_rng(1))
    assert len(set(rows.tolist())) == 1500
    found = np.bincount(rows // (count // 3), minlength=3)
    share = np.array([1.0, 0.36, 0.6]) / 1.96
    assert stats.chisquare(found, 1500 * share).pvalue > 1e-3


def test_asking_twice_gives_the_same_and_only_what_is_observed_counts() -> None:
    estimator = GresoEstimator(20, 3, EstimatorConfig())
    before = estimator.metrics()["passes"]
    first = estimator.probe(0, np.random.default_rng(4))
    second = estimator.probe(0, np.random.default_rng(4))
    assert first is not None
    assert second is not None
    assert first.tolist() == second.tolist()
    assert estimator.metrics()["passes"] == before == 0
    estimator.observe(outcome(0, dict.fromkeys(first.tolist(), 0)))
    assert estimator.metrics()["passes"] == 1
    third = estimator.probe(0, np.random.default_rng(4))
    assert third is not None
    assert not set(first.tolist()) & set(third.tolist())


@pytest.mark.parametrize("preset", ["dapo", "greso", "current-fr"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_with_replay_no_more_is_found_than_is_trained_on(preset: str, share: float) -> None:
    config = CurriculumConfig.preset(preset, rollout_budget=64, fresh_share=share)
    assert _groups_of_a_step(config) == 8 * share
