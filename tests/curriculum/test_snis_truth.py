"""SNIS against enumerated truth: convergence, the Proposition's bound, and error under drift."""

import numpy as np
import pytest

from dare.config import EstimatorConfig
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators import (
    Outcome,
    PaperEstimator,
    PreviousEstimator,
    clip_bias,
    effective_sample_size,
    snis_bound,
    snis_difficulty,
    weights,
)
from dare.simulation.tabular import TabularPolicy


def behaviour_and_current(drift: float, seed: int = 0, **sampling):
    behaviour = TabularPolicy.random(4, seed=seed, **sampling)
    return behaviour, behaviour.drifted(drift, np.random.default_rng(seed + 100))


def test_zero_drift_gives_weight_one_and_ess_k():
    policy = TabularPolicy.random(6, seed=0, temperature=0.6, top_p=0.95)
    buffer = RolloutBuffer(16, 100)
    buffer.add(policy.sample(np.repeat(np.arange(6), 16), np.random.default_rng(0)), 0)
    buffer.rescore(buffer["uid"], policy.score(buffer.batch(np.arange(len(buffer)))), 1)
    weight = weights(buffer.log_ratio, 4.0)
    np.testing.assert_array_equal(weight, 1.0)
    np.testing.assert_array_equal(effective_sample_size(weight, buffer["prompt"], 6), 16.0)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.6, "top_p": 0.95}])
def test_unclipped_snis_converges_to_the_enumerated_failure_rate(sampling):
    # The nucleus of the behaviour must cover the current policy's, as importance sampling needs.
    behaviour, current = behaviour_and_current(0.3, **sampling)
    behaviour = TabularPolicy(
        behaviour.tree, behaviour.logits_PNV, behaviour.correct_PS, behaviour.temperature, 1.0
    )
    truth, rng = current.true_difficulty(), np.random.default_rng(5)
    errors = []
    for size in (30, 1000, 30_000):
        rows = np.repeat(np.arange(4), size)
        batch = behaviour.sample(rows, rng)
        weight = weights(current.score(batch) - batch.total_logprob_R, np.inf)
        estimate = snis_difficulty(weight, batch.reward_R, rows, 4)
        errors.append(np.abs(estimate - truth).max())
    assert errors[2] < 0.02
    assert errors[2] < errors[1] < errors[0]


def test_the_plain_mean_does_not_converge_under_the_same_drift():
    behaviour, current = behaviour_and_current(1.0)
    rows = np.repeat(np.arange(4), 30_000)
    batch = behaviour.sample(rows, np.random.default_rng(5))
    plain = snis_difficulty(np.ones(len(rows)), batch.reward_R, rows, 4)
    assert np.abs(plain - current.true_difficulty()).max() > 0.05


def test_clip_to_zero_is_the_plain_mean():
    behaviour, current = behaviour_and_current(1.0)
    rows = np.repeat(np.arange(4), 50)
    batch = behaviour.sample(rows, np.random.default_rng(0))
    ratio = current.score(batch) - batch.total_logprob_R
    weight = weights(ratio, 0.0)
    plain = 1.0 - batch.reward_R.reshape(4, 50).mean(axis=1)
    np.testing.assert_allclose(snis_difficulty(weight, batch.reward_R, rows, 4), plain, atol=1e-6)


@pytest.mark.parametrize(("clip", "size"), [(0.3, 60), (0.5, 200), (1.0, 400)])
def test_the_bound_holds_in_at_least_1_minus_delta_of_10000_replicates(clip, size):
    delta, replicates = 0.1, 10_000
    behaviour, current = behaviour_and_current(0.3, seed=2)
    probability = behaviour.response_probability()[0]
    ratio = np.exp(current.response_logprob()[0] - behaviour.response_logprob()[0])
    clipped = np.clip(ratio, np.exp(-clip), np.exp(clip))
    mean_weight = float((probability * clipped).sum())
    bias = clip_bias(ratio, probability, clip)
    assert bias == pytest.approx(float((probability * np.abs(ratio - clipped)).sum()))
    bound = snis_bound(size, clip=clip, delta=delta, min_mean_weight=mean_weight, clip_bias=bias)
    assert np.isfinite(bound)
    rng = np.random.default_rng(0)
    response = rng.choice(len(probability), size=(replicates, size), p=probability)
    weight, wrong = clipped[response], ~behaviour.correct_PS[0][response]
    estimate = (weight * wrong).sum(axis=1) / weight.sum(axis=1)
    held = np.abs(estimate - current.true_difficulty()[0]) <= bound
    assert held.mean() >= 1 - delta


def test_the_bound_is_the_formula_and_infinite_where_it_says_nothing():
    epsilon = np.exp(1.0) * np.sqrt(np.log(4 / 0.05) / (2 * 5000))
    expected = 2 * epsilon / (0.9 - epsilon) + 0.2 / 0.9
    got = snis_bound(5000, clip=1.0, delta=0.05, min_mean_weight=0.9, clip_bias=0.2)
    assert got == pytest.approx(expected)
    assert snis_bound(32, clip=4.0) == np.inf


def errors_under_drift(drift: float, history: int, seeds: int = 4) -> dict[str, float]:
    """MAE against the enumerated truth: the paper's, previous-FR and 8 fresh rollouts."""
    total: dict[str, list[float]] = {"paper": [], "previous": [], "fresh": []}
    prompts, group = 200, 8
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 9])
        policy = TabularPolicy.random(prompts, seed=seed)
        buffer = RolloutBuffer(history, 10**6)
        named = {
            "paper": PaperEstimator(prompts, buffer, EstimatorConfig()),
            "previous": PreviousEstimator(prompts, buffer),
        }
        for step in range(20):
            rows = np.flatnonzero(rng.random(prompts) < 0.3) if step else np.arange(prompts)
            batch = policy.sample(np.repeat(rows, group), rng)
            buffer.add(batch, step)
            failures = (1.0 - batch.reward_R).reshape(-1, group).sum(axis=1)
            for estimator in named.values():
                estimator.observe(Outcome(step, rows, np.full(len(rows), 8.0), failures))
            policy = policy.drifted(drift, rng)
            everything = buffer.batch(np.arange(len(buffer)))
            buffer.rescore(buffer["uid"], policy.score(everything), step + 1)
            for estimator in named.values():
                estimator.refresh(step + 1, rng)
            if step >= 10:
                truth = policy.true_difficulty()
                for name, estimator in named.items():
                    total[name].append(np.abs(estimator.difficulty() - truth).mean())
                reward = policy.sample(np.repeat(np.arange(prompts), group), rng).reward_R
                fresh = 1.0 - reward.reshape(-1, group).mean(axis=1)
                total["fresh"].append(np.abs(fresh - truth).mean())
    return {name: float(np.mean(values)) for name, values in total.items()}


@pytest.mark.parametrize("history", [16, 32])
@pytest.mark.parametrize("drift", [0.0, 0.05, 0.2])
def test_history_aligned_by_snis_beats_eight_fresh_rollouts(drift, history):
    error = errors_under_drift(drift, history)
    assert error["paper"] < 0.85 * error["fresh"]
    noise = 0.002
    assert error["paper"] <= error["previous"] + noise
    if drift == 0.2:
        assert error["paper"] < 0.95 * error["previous"]
