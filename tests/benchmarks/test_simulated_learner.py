"""Properties of the simulated learner."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from simulated import SimulatedLearner
from simulated.learner import _gradient
from simulated.population import UNITS

from dare.config import CurriculumConfig
from dare.curriculum import Curriculum
from dare.curriculum.arrays import offsets_of
from dare.curriculum.batch import TrainBatch
from dare.curriculum.plan import StepPlan
from dare.curriculum.rollouts import Conditioning, Finish, RolloutBatch
from dare.errors import InvalidInput


def _plan(learner: SimulatedLearner, **changes: Any) -> tuple[Curriculum, StepPlan]:
    config = CurriculumConfig.preset("grpo", rollout_budget=256, **changes)
    curriculum = Curriculum(learner.table(), config, learner.services())
    return curriculum, curriculum.plan()


def _batch(learner: SimulatedLearner, step: int = 0) -> TrainBatch:
    curriculum, plan = _plan(learner)
    batch = curriculum.observe(learner.generate(plan, step))
    assert batch is not None
    return batch


def _shift(learner: SimulatedLearner, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    learner.skill_S += 0.5 * rng.normal(size=learner.skill_S.shape)
    learner.verbosity_S += 0.2 * rng.normal(size=learner.verbosity_S.shape)
    learner.style_T += 0.4 * rng.normal(size=learner.style_T.shape)


def _enumerated(row: int, budget: int) -> RolloutBatch:
    """Every outcome and length of one prompt under a token budget, and the cut response."""
    lengths = np.repeat(np.arange(2, budget + 1), 2)
    reward = np.tile([0.0, 1.0], budget - 1)
    finish = np.zeros(len(lengths), np.uint8)
    if budget < UNITS:
        lengths, reward = np.append(lengths, budget), np.append(reward, 0.0)
        finish = np.append(finish, np.uint8(Finish.LENGTH))
    total = int(lengths.sum())
    return RolloutBatch(
        prompt_R=np.full(len(lengths), row),
        tokens=np.zeros(total, np.int32),
        logprobs=np.zeros(total, np.float32),
        offsets=offsets_of(lengths),
        total_logprob_R=np.zeros(len(lengths)),
        reward_R=reward.astype(np.float32),
        conditioning_R=np.zeros(len(lengths), np.uint8),
        finish_R=finish,
    )


@pytest.mark.parametrize("budget", [2, 5, 8, UNITS])
def test_outcomes_have_total_probability_one_and_ratios_mean_one(budget: int) -> None:
    learner = SimulatedLearner(50)
    for row in range(0, 50, 7):
        batch = _enumerated(row, budget)
        before = learner._logprobs(batch, batch.conditioning_R)
        chance = np.exp(before[0] + before[1])
        assert chance.sum() == pytest.approx(1.0)
        _shift(learner, row)
        after = learner._logprobs(batch, batch.conditioning_R)
        ratio = np.exp(after[0] + after[1] - before[0] - before[1])
        assert (chance * ratio).sum() == pytest.approx(1.0)


def test_uncut_failure_mass_is_the_true_difficulty() -> None:
    learner = SimulatedLearner(50)
    _shift(learner)
    batch = _enumerated(3, UNITS)
    outcome, size, _ = learner._logprobs(batch, batch.conditioning_R)
    failed = np.exp(outcome + size)[batch.reward_R == 0].sum()
    assert failed == pytest.approx(learner.true_difficulty([3])[0])


def test_style_drift_keeps_the_mean_ratio_at_one() -> None:
    learner = SimulatedLearner(5000, drift=0.3)
    _, plan = _plan(learner)
    big = dataclasses.replace(plan, plain_P=plan.plain_P * 100)
    rollouts = learner.generate(big, 0)
    np.testing.assert_array_equal(learner.score(rollouts), rollouts.total_logprob_R)
    outcome, size, style = learner._logprobs(rollouts, rollouts.conditioning_R)
    learner.style_T += 0.5
    ratio = np.exp(learner._logprobs(rollouts, rollouts.conditioning_R)[2] - style)
    assert ratio.std() > 0.4
    assert abs(ratio.mean() - 1.0) < 4 * ratio.std() / np.sqrt(len(ratio))
    _shift(learner)
    weight = np.exp(learner.score(rollouts) - (outcome + size + style))
    assert abs(weight.mean() - 1.0) < 5 * weight.std() / np.sqrt(len(weight))


def test_generated_outcomes_follow_the_stated_probabilities() -> None:
    learner = SimulatedLearner(3000)
    _, plan = _plan(learner)
    many = dataclasses.replace(plan, plain_P=plan.plain_P * 200)
    rollouts = learner.generate(many, 0)
    rate = np.bincount(rollouts.prompt_R, 1.0 - rollouts.reward_R, 3000)
    rate /= np.maximum(np.bincount(rollouts.prompt_R, minlength=3000), 1)
    truth = learner.true_difficulty(plan.prompt_P)
    assert np.abs(rate[plan.prompt_P] - truth).max() < 5 * 0.5 / np.sqrt(1600)


def test_groups_without_reward_variance_teach_no_skill() -> None:
    learner = SimulatedLearner(500)
    batch = _batch(learner)
    equal = ~batch.varied_N[batch.group_R]
    assert equal.any()
    assert not equal.all()
    lone = dataclasses.replace(batch, weight_R=np.where(equal, batch.weight_R, 0.0))
    learner.learn(lone)
    np.testing.assert_array_equal(learner.skill_S, 0.0)
    learner.learn(batch)
    assert np.abs(learner.skill_S).max() > 0


def test_a_step_is_the_gradient_of_the_clipped_objective() -> None:
    learner = SimulatedLearner(300, skills=2, rate=1e-6, length_rate=1e-6)
    batch = _batch(learner)
    _shift(learner)

    def objective() -> float:
        rollouts = batch.rollouts
        start, value = rollouts.offsets[:-1], 0.0
        for slot, now in enumerate(learner._logprobs(rollouts, rollouts.conditioning_R)[:2]):
            ratio = np.exp(now - rollouts.logprobs[start + slot])
            clipped = np.clip(ratio, 1 - batch.clip_low_R, 1 + batch.clip_high_R)
            gain = np.minimum(ratio * batch.advantage_R, clipped * batch.advantage_R)
            value += float(batch.weight_R @ gain)
        return value

    before = learner.skill_S.copy(), learner.verbosity_S.copy()
    numeric = []
    for state in (learner.skill_S, learner.verbosity_S):
        for place in range(len(state)):
            old = state[place]
            state[place] = old + 1e-5
            high = objective()
            state[place] = old - 1e-5
            numeric.append((high - objective()) / 2e-5)
            state[place] = old
    learner.learn(batch)
    moved = np.concatenate([learner.skill_S - before[0], learner.verbosity_S - before[1]]) / 1e-6
    np.testing.assert_allclose(moved, numeric, atol=2e-4)
    assert np.abs(moved).max() > 0.01


def test_ratios_beyond_the_clip_stop_counting() -> None:
    batch = _batch(SimulatedLearner(500))
    far = np.full(len(batch.uid_R), np.log(3.0))
    assert not _gradient(batch, far)[batch.advantage_R > 0].any()
    assert not _gradient(batch, -far)[batch.advantage_R < 0].any()
    near = _gradient(batch, 0.0 * far)
    np.testing.assert_allclose(near, batch.weight_R * batch.advantage_R)


def test_help_raises_success_and_a_ceiling_holds() -> None:
    learner = SimulatedLearner(200, ceiling=0.05, rate=50.0)
    rows = np.arange(200)
    plain = learner._log_odds(rows)
    hinted = learner._log_odds(rows, np.full(200, Conditioning.HINTED))
    longer = learner._log_odds(rows, np.full(200, Conditioning.THINK_LONGER))
    np.testing.assert_allclose(hinted - plain, learner.world.hint_boost)
    np.testing.assert_allclose(longer - plain, learner.world.think_boost)
    learner.skill_S[:] = 0.05
    learner.learn(_batch(learner))
    assert learner.skill_S.max() <= 0.05


def test_generation_is_keyed_by_seed_and_step() -> None:
    learner = SimulatedLearner(500, seed=3)
    _, plan = _plan(learner)
    first, again, later = (learner.generate(plan, step) for step in (1, 1, 2))
    for name in RolloutBatch.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.total_logprob_R, later.total_logprob_R)


def test_population_looks_like_measured_pass_rates() -> None:
    difficulty = SimulatedLearner(50_000).true_difficulty()
    # DeepScaleR, Qwen2.5-Math-7B, 128 rollouts: 34 % below 0.3, 43 % above 0.8, mean 0.575.
    assert (difficulty < 0.3).mean() == pytest.approx(0.34, abs=0.02)
    assert (difficulty > 0.8).mean() == pytest.approx(0.43, abs=0.02)
    assert difficulty.mean() == pytest.approx(0.575, abs=0.02)


def test_impossible_worlds_are_refused() -> None:
    with pytest.raises(InvalidInput, match="transfer"):
        SimulatedLearner(10, transfer=1.5)
