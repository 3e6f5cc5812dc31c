"""Behaviour log-probs that come after `observe`, from the update's own pass, or never."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from worlds import batch, describe, frozen, roll, same, scorer, services, small, table, truth

from dare import Curriculum, CurriculumConfig, InvalidInput, RolloutBatch
from dare.config import preset_names
from dare.curriculum import Estimator, RolloutBuffer, ScoreRequest, TrainBatch
from dare.curriculum.estimators import Outcome, PaperEstimator
from dare.curriculum.estimators.build import wanted_scores

CONFIGS = {
    "dare": small("dare"),
    "dare, sigma 0.5": small("dare", fresh_share=0.5),
    "classic": small("classic"),
    "classic, sigma 1": small("classic", fresh_share=1.0),
    "classic, probed": small("classic", **{"cold_start.train": False}),
    "paper": small("paper"),
    "paper, sigma 0.5": small("paper", fresh_share=0.5, **{"selection.eta": 0.5}),
    "grpo, sigma 0.5": small("grpo", fresh_share=0.5),
    "previous-fr": small("previous-fr"),
    "current-fr": small("current-fr"),
}


def unknown(rollouts: RolloutBatch) -> RolloutBatch:
    """The same rollouts before anybody has read them."""
    return dataclasses.replace(
        rollouts,
        logprobs=np.full_like(rollouts.logprobs, np.nan),
        total_logprob_R=np.full(len(rollouts), np.nan),
    )


def rows_of(rollouts: RolloutBatch) -> list[Any]:
    return np.split(rollouts.logprobs, rollouts.offsets[1:-1])


def varied(result: TrainBatch, count: int) -> Any:
    """Which of the fresh rollouts an update reads: those of groups that teach something."""
    return result.varied_N[result.group_R[:count]]


def step(curriculum: Curriculum, *, late: str = "", refresh: bool = True) -> Any:
    """One plan; `late` says whose log-probs come after `observe`: of all, of trained or of none."""
    plan = curriculum.plan()
    rollouts = roll(plan, curriculum.prompts, truth(curriculum.prompts))
    ahead = curriculum.buffer.uids_of(rollouts)
    result = curriculum.observe(unknown(rollouts) if late else rollouts)
    if late in ("all", "trained"):
        known = np.ones(len(rollouts), bool)
        if late == "trained":
            known = varied(result, len(rollouts)) if result is not None else ~known
        chosen = np.flatnonzero(known)
        values = [rows_of(rollouts)[row] for row in chosen]
        curriculum.record_behaviour(ahead[known], values, rollouts.total_logprob_R[known])
    if plan.train and refresh:
        curriculum.refresh(scorer, 200)
    return plan, result


@pytest.mark.parametrize("name", CONFIGS)
def test_late_log_probs_are_worth_what_early_ones_are(name: str) -> None:
    early, late = (Curriculum(table(70), CONFIGS[name], services(70)) for _ in range(2))
    replayed = 0
    for _ in range(10):
        one, _ = step(early)
        other, _ = step(late, late="all")
        assert describe(one) == describe(other)
        assert np.array_equal(early.difficulty(), late.difficulty())
        assert np.array_equal(early.estimator.evidence(), late.estimator.evidence())
        replayed += one.replay_rollouts
    assert same(early.state_dict(), late.state_dict())
    assert (replayed > 0) == (CONFIGS[name].replays or name == "current-fr")


def test_flat_log_probs_are_those_of_the_list() -> None:
    one, other = (Curriculum(table(70), small("dare"), services()) for _ in range(2))
    rollouts = roll(one.plan(), one.prompts, truth(one.prompts))
    for curriculum in (one, other):
        result = curriculum.observe(unknown(rollouts))
        assert result is not None
        assert np.isnan(result.rollouts.logprobs).all()
        assert not result.rollouts.has_behaviour_R.any()
    total = rollouts.total_logprob_R
    one.record_behaviour(result.uid_R, rows_of(rollouts), total)
    other.record_behaviour(result.uid_R, rollouts.logprobs, total, rollouts.offsets)
    assert same(one.state_dict(), other.state_dict())
    assert np.array_equal(one.buffer.batch(np.arange(len(rollouts))).logprobs, rollouts.logprobs)
    assert (one.buffer["scored_step"] == 0).all()
    with pytest.raises(InvalidInput, match="offsets"):
        one.record_behaviour(result.uid_R, rollouts.logprobs, total, rollouts.offsets[:-1])


@pytest.mark.parametrize(
    "name", ["dare, sigma 0.5", "classic", "paper, sigma 0.5", "grpo, sigma 0.5"]
)
def test_what_has_no_behaviour_is_never_replayed_and_never_rescored(name: str) -> None:
    curriculum = Curriculum(table(70), CONFIGS[name], services(70))
    buffer = curriculum.buffer
    asked: list[int] = []

    def noted(request: ScoreRequest) -> Any:
        asked.extend(request.uid_R.tolist())
        assert np.isfinite(request.rollouts.total_logprob_R).all()
        return scorer(request)

    replayed = 0
    for _ in range(12):
        plan, _ = step(curriculum, late="trained", refresh=False)
        replayed += plan.replay_rollouts
        curriculum.refresh(noted, 10**6)
        held = buffer.members(curriculum.plan().replay)
        assert buffer.has_behaviour[held].all()
        assert np.isfinite(buffer.batch(held).logprobs).all()
        assert np.isfinite(curriculum.difficulty()).all()
        assert np.isfinite(curriculum.estimator.evidence()).all()
        assert all(np.isfinite(value) for value in curriculum.metrics().values())
    without = buffer["uid"][~buffer.has_behaviour]
    assert len(without)
    assert replayed > 0
    assert (len(asked) > 0) == curriculum.estimator.rescores
    assert not set(asked) & set(without.tolist())
    assert np.isnan(buffer.log_ratio[~buffer.has_behaviour]).all()
    buffer.rescore(without, np.zeros(len(without)), curriculum.step)
    assert np.isnan(buffer.log_ratio[~buffer.has_behaviour]).all()
    again = Curriculum(table(70), CONFIGS[name], services(70))
    again.load_state_dict(frozen(curriculum.state_dict()))
    assert same(again.state_dict()["arrays"], curriculum.state_dict()["arrays"])
    assert describe(again.plan()) == describe(curriculum.plan())


def test_a_group_that_was_half_read_is_not_replayed() -> None:
    buffer = RolloutBuffer(8, 8)
    buffer.add(unknown(batch([0, 0, 1, 1], [1, 0, 1, 0])), 0)
    assert buffer.replayable().tolist() == []
    buffer.record_behaviour([0, 2, 3], [[-1.0] * 3] * 3, [-3.0] * 3)
    assert buffer.replayable().tolist() == [1]
    buffer.record_behaviour([1], [[-1.0] * 3], [-3.0])
    assert buffer.replayable().tolist() == [0, 1]


def test_ours_reads_no_log_probs() -> None:
    """Outcomes and states alone, whether log-probs are known or not."""
    ways = ("", "trained", "none")
    curricula = [Curriculum(table(70), CONFIGS["dare"], services(70)) for _ in ways]
    for _ in range(8):
        for curriculum, late in zip(curricula, ways, strict=True):
            step(curriculum, late=late, refresh=False)
            curriculum.refresh(None, 400)
        assert all(np.array_equal(curricula[0].difficulty(), c.difficulty()) for c in curricula[1:])


def test_the_paper_weighs_what_it_cannot_score_only_while_the_policy_is_the_same() -> None:
    config = CurriculumConfig.preset("paper").estimator
    buffer = RolloutBuffer(16, 16)
    estimator = PaperEstimator(2, buffer, config)
    estimator.set_prior(np.array([0.9, 0.9]))
    buffer.add(unknown(batch([0] * 8, [1, 0] * 4)), 0)
    estimator.observe(Outcome(0, np.array([0]), np.array([8.0]), np.array([4.0])))
    assert estimator.difficulty().tolist() == [0.5, 0.9]
    assert estimator.evidence().tolist() == [8.0, 0.0]
    estimator.refresh(1, np.random.default_rng(0))  # after an update nothing says what it is worth
    assert estimator.difficulty().tolist() == [0.9, 0.9]
    assert estimator.evidence().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("below", ["prior", "raw"])
def test_without_drift_every_rollout_counts_fully(below: str) -> None:
    config = small("classic", fresh_share=1.0, **{"estimator.below_threshold": below})
    curriculum = Curriculum(table(30), config, services())
    for _ in range(6):
        step(curriculum, late="all", refresh=False)
        curriculum.refresh(lambda request: request.rollouts.total_logprob_R, 10**6)
    buffer = curriculum.buffer
    assert (buffer.log_ratio == 0).all()
    held = np.bincount(buffer["prompt"][buffer.plain], minlength=30)
    assert curriculum.estimator.evidence() == pytest.approx(held)
    curriculum.observe(roll(curriculum.plan(), curriculum.prompts, truth(curriculum.prompts)))
    held = np.bincount(buffer["prompt"][buffer.plain], minlength=30)
    assert curriculum.metrics()["ess"] == pytest.approx(held[held > 0].mean())


def test_behaviour_is_written_once_and_only_for_what_is_held() -> None:
    buffer = RolloutBuffer(2, 4)
    buffer.record_behaviour([5], [[-1.0]], [-1.0])  # nothing is held at all
    buffer.add(batch([0, 0], [1, 0], total=[-2.0, -3.0]), 0)
    buffer.add(unknown(batch([1, 1, 1], [1, 0, 0], length=[2, 0, 3])), 1)  # K = 2: uid 2 is gone
    assert buffer["uid"].tolist() == [0, 1, 3, 4]
    before = frozen(buffer.state_dict())
    buffer.record_behaviour([0, 2, -1], [[-9.0] * 3, [-9.0] * 7, []], [-9.0] * 3)
    assert same(buffer.state_dict(), before)
    buffer.record_behaviour([4, 3, 0], [[-1, -2, -3], [], [7]], [-6.5, -0.5, 7.0])
    assert buffer["behaviour"].tolist() == [-2.0, -3.0, -0.5, -6.5]
    assert buffer["current"].tolist() == [-2.0, -3.0, -0.5, -6.5]
    assert buffer["scored_step"].tolist() == [0, 0, 1, 1]
    assert buffer.batch([3]).logprobs.tolist() == [-1, -2, -3]


@pytest.mark.parametrize(
    ("logprobs", "total", "field"),
    [
        ([[-1.0] * 3, [-1.0] * 2], [-3.0, -2.0], "logprobs"),
        ([[-1.0] * 3], [-3.0, -3.0], "logprobs"),
        ([[-1.0] * 3] * 2, [-3.0], "total_logprob"),
        ([[-1.0, np.nan, -1.0], [-1.0] * 3], [-3.0, -3.0], "logprobs"),
        ([[-1.0] * 3] * 2, [-3.0, -np.inf], "total_logprob"),
    ],
)
def test_bad_behaviour_is_refused_and_changes_nothing(
    logprobs: list[Any], total: list[float], field: str
) -> None:
    curriculum = Curriculum(table(2), small("dare"), services())
    prompts = curriculum.plan().prompt_P[:1].tolist() * 2
    curriculum.observe(unknown(batch(prompts, [1.0, 0.0])))
    before = frozen(curriculum.state_dict())
    with pytest.raises(InvalidInput) as error:
        curriculum.record_behaviour(np.array([0, 1]), logprobs, np.array(total))
    assert error.value.field == field
    assert same(curriculum.state_dict(), before)


def test_totals_without_log_probs_are_refused() -> None:
    with pytest.raises(InvalidInput, match="logprobs"):
        RolloutBatch.from_lists([0], [[1, 2]], None, [1.0], total_logprob=[-1.0])
    packed = RolloutBatch.from_lists([0, 0], [[1, 2], [3]], None, [1.0, None])
    assert packed.has_behaviour_R.tolist() == [False, False]
    assert packed.length_R.tolist() == [2, 1]


def test_groups_of_this_step_s_own_probes_count_as_fresh() -> None:
    curriculum = Curriculum(table(60), small("current-fr", rollout_budget=32), services())
    fail = np.full(60, 0.5)
    while not (plan := curriculum.plan()).train:
        curriculum.observe(unknown(roll(plan, curriculum.prompts, fail)))
    assert plan.replay_rollouts > 0
    result = curriculum.observe(unknown(roll(plan, curriculum.prompts, fail)))
    assert result is not None
    assert result.fresh_R.all()
    assert (result.uid_R >= 0).all()
    assert len(set(result.uid_R.tolist())) == len(result.rollouts) == 32


class Silent(Estimator):
    scores = "none"


def test_settings_say_whose_log_probs_are_read() -> None:
    found = {name: wanted_scores(CurriculumConfig.preset(name)) for name in preset_names()}
    weighed = {name: "all" for name in found if name.startswith(("grpo+", "paper"))}
    replaying = dict.fromkeys(("dots", "edco", "llm-judge"), "trained")
    plain = ("dare", "grpo", "dapo", "greso", "mopps", "previous-fr", "current-fr")
    assert found == {**weighed, **replaying, **dict.fromkeys(plain, "none")}
    assert wanted_scores(small("dare", fresh_share=0.5)) == "trained"
    for name in ("dare", "paper", "grpo", "previous-fr"):
        assert Curriculum(table(20), small(name), services()).wants_scores == found[name]
    own = {"dare.curriculum.estimators.base:Estimator": "all", f"{__name__}:Silent": "none"}
    for name, wanted in own.items():
        config = small("dare", fresh_share=1.0, **{"estimator.name": name})
        assert wanted_scores(config) == wanted
        assert Curriculum(table(20), config, services()).wants_scores == wanted
    helps = {name for name in found if CurriculumConfig.preset(name).helps}
    assert helps == {"paper", "paper-release", "grpo+snis+selection+hard"}
    assert small("classic").helps
    assert not small("classic", **{"hard.extra": "plain"}).helps
    assert not small("classic", **{"hard.plain": 16}).helps
