"""DARE's own estimate: the regression against brute force, and what it says of prompts."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import integrate, optimize, stats
from worlds import batch as rollouts_of

from dare.config import CurriculumConfig
from dare.curriculum import Curriculum, PromptTable, Services
from dare.curriculum.arrays import Array
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators.base import Measured
from dare.curriculum.estimators.dare import LiveEstimator, RescoredEstimator
from dare.curriculum.estimators.dare.features import principal_directions, solution_features
from dare.curriculum.estimators.dare.regression import (
    TREND_VARIANCE,
    Groups,
    fit,
    foretold,
    mixed_chance,
    rate_moments,
    shares,
    tried_moments,
)
from dare.curriculum.planner import allocate
from dare.curriculum.rollouts import Outcome
from dare.curriculum.selection import Selector
from dare.errors import InvalidInput
from dare.simulation.tabular import TabularPolicy


def groups_of(rng: np.random.Generator, prompts: int, count: int) -> Groups:
    """Groups of several ages; some prompts have several."""
    index = np.concatenate([np.arange(prompts), rng.integers(0, prompts, count - prompts)])
    trials = rng.integers(2, 17, count).astype(float)
    failures = rng.binomial(trials.astype(int), rng.random(count)).astype(float)
    age = rng.integers(0, 30, count).astype(float)
    return Groups(index, trials, failures, age, np.column_stack([age / 10, rng.random(count)]))


def test_the_mode_the_curvature_and_the_evidence_are_those_of_brute_force() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((12, 3))
    groups = groups_of(rng, 12, 20)
    precision, own_variance, share = np.array([0.1, 1.0, 2.0]), 4.0, rng.random(20)
    found = fit(features, groups, precision, own_variance, share)
    # The same model, every prompt's own logit summed out over a grid too fine to matter.
    design = np.hstack([features[groups.index_N], groups.covariates_NT])
    penalty = np.concatenate([precision, np.full(2, 1 / TREND_VARIANCE)])
    own = np.linspace(-24.0, 24.0, 4801)
    prior = stats.norm.pdf(own, scale=np.sqrt(own_variance)) * (own[1] - own[0])

    def cost(theta: Array) -> float:
        logit = (design @ theta)[:, None] + own
        held = groups.trials_N[:, None] * np.logaddexp(0, logit)
        said = share[:, None] * (groups.failures_N[:, None] * logit - held)
        of_prompt = np.zeros((12, len(own)))
        np.add.at(of_prompt, groups.index_N, said)
        return float(-np.log(np.exp(of_prompt) @ prior).sum() + 0.5 * penalty @ theta**2)

    best = optimize.minimize(cost, np.zeros(5), method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(found.weight_F, best.x, atol=2e-3)
    curve, apart = np.zeros((5, 5)), 1e-3 * np.eye(5)
    for row, column in product(range(5), repeat=2):
        near, far = apart[row] + apart[column], apart[row] - apart[column]
        corners = cost(best.x + near) + cost(best.x - near)
        corners -= cost(best.x + far) + cost(best.x - far)
        curve[row, column] = corners / 4e-6
    np.testing.assert_allclose(found.covariance_FF, np.linalg.inv(curve), atol=2e-3)
    evidence = -best.fun + 0.5 * (np.log(penalty).sum() - np.linalg.slogdet(curve)[1])
    assert found.log_evidence == pytest.approx(evidence, abs=2e-3)


def test_a_far_start_arrives_at_the_same_mode() -> None:
    rng = np.random.default_rng(1)
    features, groups = rng.standard_normal((12, 3)), groups_of(rng, 12, 20)
    near = fit(features, groups, np.ones(3), 2.0, np.ones(20))
    far = fit(features, groups, np.ones(3), 2.0, np.ones(20), np.full(5, 6.0))
    np.testing.assert_allclose(near.weight_F, far.weight_F, atol=1e-2)


def test_prompts_that_nearly_all_fail_are_said_to_fail_as_often_as_they_do() -> None:
    """A joint mode over weights and own logits said 0.03 too little here, with any number."""
    missed = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        features = np.column_stack([np.ones(2300), rng.standard_normal((2300, 4)) / 2])
        weight = np.array([3.6, *rng.standard_normal(4)])
        logit = features @ weight + np.sqrt(3.0) * rng.standard_normal(2300)
        truth = 1 / (1 + np.exp(-logit))
        failures = rng.binomial(8, truth[:300]).astype(float)
        now = np.zeros((300, 2))
        groups = Groups(np.arange(300), np.full(300, 8.0), failures, np.zeros(300), now)
        precision = np.array([1 / 16, 1.0, 1.0, 1.0, 1.0])
        found = fit(features[:300], groups, precision, 3.0, np.ones(300))
        unsure = np.einsum("pf,pf->p", features @ found.covariance_FF[:5, :5], features) + 3.0
        said, _ = rate_moments(features @ found.weight_F[:5], unsure)
        missed.append(float((said - truth)[300:].mean()))
    assert abs(np.mean(missed)) < 0.01


def expected(mean: float, variance: float, value: Any, likelihood: Any = None) -> float:
    """E of value(rate), the logit Gaussian times a likelihood, by numerical integration."""
    logit = np.linspace(-40.0, 40.0, 80_001)
    weight = np.exp(-0.5 * (logit - mean) ** 2 / variance)
    if likelihood is not None:
        weight = weight * likelihood(logit)
    whole, part = (
        integrate.trapezoid(weight * of, logit) for of in (1.0, value(1 / (1 + np.exp(-logit))))
    )
    return float(part / whole)


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1.0), (-3.0, 0.5), (2.0, 4.0)])
def test_rates_of_untried_prompts_by_numerical_integration(mean: float, variance: float) -> None:
    first, spread = rate_moments(np.array([mean]), np.array([variance]))
    wanted = expected(mean, variance, lambda p: p)
    assert first[0] == pytest.approx(wanted, abs=2e-3)
    second = expected(mean, variance, lambda p: p**2)
    assert spread[0] == pytest.approx(second - wanted**2, abs=2e-3)


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1.0), (-3.0, 9.0), (2.0, 4.0)])
@pytest.mark.parametrize("failures", [(0, 0), (3, 5), (8, 16)])
@pytest.mark.parametrize("hold", [1.0, 0.3])
def test_rates_of_tried_prompts_by_numerical_integration(
    mean: float, variance: float, failures: tuple[int, int], hold: float
) -> None:
    trials, shift, share = np.array([8.0, 16.0]), np.array([0.0, 0.4]), np.array([1.0, 0.6])
    far, age, kind = (
        5 * np.sqrt(variance),
        np.array([0.0, 5.0]),
        (np.array([mean]), np.array([variance])),
    )
    groups = Groups(np.zeros(2, int), trials, np.array(failures, float), age, np.zeros((2, 2)))
    first, spread, middle = tried_moments(*kind, groups, shift, share, hold)

    def likelihood(x: Array, share: Array = share) -> Array:
        total = np.zeros(len(x))
        for n, k, left, moved in zip(trials, failures, share, shift, strict=True):
            logit = x + moved
            total += (k * logit - n * np.logaddexp(0, logit)) * left
        # The grid of the estimate ends where its kind would be five deviations away.
        return np.exp(total) * (np.abs(x - mean) <= far)

    variance /= hold
    wanted = expected(mean, variance, lambda p: p, likelihood)
    assert first[0] == pytest.approx(wanted, abs=1e-3)
    second = expected(mean, variance, lambda p: p**2, likelihood)
    assert spread[0] == pytest.approx(second - wanted**2, abs=1e-3)
    half = expected(mean, variance, lambda p: p <= middle[0], likelihood)
    assert half == pytest.approx(0.5, abs=5e-3)
    # What comes out next: its chance under the same belief.
    came, others = (np.array([8.0]), np.array([2.0])), np.array([share, [1.0, 1.0]])
    told = foretold(*kind, groups, shift, others, [hold], came)
    for row, left in enumerate(others):
        chance = expected(
            mean, variance, lambda p: p**2 * (1 - p) ** 6, lambda x, left=left: likelihood(x, left)
        )
        assert told[row, 0] == pytest.approx(np.log(chance), abs=5e-3 / hold)


def test_groups_fade_as_the_knowledge_of_a_wandering_rate_does() -> None:
    """W rollouts have a variance of 1/W, which grows by `fade` a step; newer ones add to them."""
    groups, fades = groups_of(np.random.default_rng(4), 12, 60), np.array([0.0, 1e-3, 0.1])
    found = shares(groups, fades)
    for row, fade in enumerate(fades):
        for prompt in range(12):
            mine = np.flatnonzero(groups.index_N == prompt)
            mine = mine[np.argsort(-groups.age_N[mine], kind="stable")]
            left, known = np.zeros(0), 0.0
            for one, group in enumerate(mine):
                left, known = np.append(left, 1.0), known + groups.trials_N[group]
                until = groups.age_N[mine[one + 1]] if one + 1 < len(mine) else 0.0
                later = 1 / (1 / known + fade * (groups.age_N[group] - until))
                left, known = left * later / known, later
            np.testing.assert_allclose(found[row, mine], left)


def test_the_chance_of_a_mixed_group_is_that_of_a_beta_binomial() -> None:
    rate, strength = np.array([0.5, 0.1, 0.97]), np.array([2.0, 9.0, 40.0])
    group = stats.betabinom(8, rate * strength, (1 - rate) * strength)
    np.testing.assert_allclose(
        mixed_chance(rate, strength, 8), 1 - group.pmf(0) - group.pmf(8), atol=1e-12
    )


def test_directions_hold_as_much_as_the_best_ones_do() -> None:
    rng = np.random.default_rng(2)
    states = rng.standard_normal((200, 30)) @ (rng.standard_normal((30, 30)) * 0.7 ** np.arange(30))
    centre, directions, scale = principal_directions(states, 5, rng)
    made = (states - centre) @ directions
    best = np.linalg.svd(states - states.mean(0), full_matrices=False)[1][:5]
    assert np.linalg.norm(made) == pytest.approx(np.linalg.norm(best), rel=1e-3)
    assert ((made / scale) ** 2).sum(1).mean() == pytest.approx(1.0)


def test_prompts_without_a_solution_have_no_features_of_one() -> None:
    statistics = np.abs(np.random.default_rng(0).standard_normal((6, 6)))
    statistics[:, 1:] *= -1
    statistics[2] = np.nan
    made = solution_features(statistics)
    assert np.isfinite(made).all()
    assert not made[2].any()
    assert np.allclose(made[[0, 1, 3, 4, 5]].mean(axis=0), 0.0, atol=1e-9)


def world(count: int = 400, seed: int = 0) -> tuple[Array, Array]:
    """States that tell half of the logit, and the true failure rates."""
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((count, 12)).astype(np.float32)
    logit = 1.5 * states[:, 0] - states[:, 1] + rng.standard_normal(count)
    return states, 1 / (1 + np.exp(-logit))


def told(
    estimator: LiveEstimator, truth: Array, steps: int, seed: int = 0, improve: float = 0.0
) -> Array:
    """Feed groups of 8; returns the truth of the last step."""
    rng = np.random.default_rng(seed)
    logit = np.log(truth / (1 - truth))
    for step in range(steps):
        rate = 1 / (1 + np.exp(-(logit - improve * step)))
        rows = np.sort(rng.choice(len(truth), 32, replace=False))
        failures = rng.binomial(8, rate[rows]).astype(float)
        estimator.observe(Outcome(step, rows, np.full(32, 8.0), failures, np.full(32, 100.0)))
        estimator.read(step, np.random.default_rng(step), 1000)
    return np.asarray(1 / (1 + np.exp(-(logit - improve * (steps - 1)))))


def test_unseen_prompts_are_told_by_their_states_and_seen_ones_by_their_own_groups() -> None:
    states, truth = world()
    blind, sighted = LiveEstimator(400), LiveEstimator(400, lambda r: Measured(states[r], len(r)))
    for estimator in (blind, sighted):
        told(estimator, truth, 8)
    seen = sighted._arrays["visits"] > 0
    missed = {
        name: np.abs(estimator.difficulty() - truth)
        for name, estimator in (("blind", blind), ("sighted", sighted))
    }
    assert missed["sighted"][~seen].mean() < 0.75 * missed["blind"][~seen].mean()
    assert missed["sighted"][seen].mean() < 0.75 * missed["sighted"][~seen].mean()
    assert missed["sighted"][seen].mean() < missed["blind"][seen].mean()
    # Predicted groups come out as mixed as they were said to.
    chance = sighted.mixed(8)[~seen]
    real = 1 - truth[~seen] ** 8 - (1 - truth[~seen]) ** 8
    assert chance.mean() == pytest.approx(real.mean(), abs=0.08)
    tokens = sighted.tokens()
    assert tokens is not None
    np.testing.assert_allclose(tokens, 100.0)


def test_without_features_untried_prompts_are_said_to_fail_as_the_groups_did() -> None:
    """More than half of these prompts never come right, and few are in between."""
    share = np.array([0.565, 0.11, 0.059, 0.041, 0.038, 0.035, 0.03, 0.04, 0.082])
    for seed in range(3):
        rng = np.random.default_rng(seed)
        right = rng.choice(9, 512, p=share / share.sum())
        estimator = LiveEstimator(1000)
        for first in range(0, 512, 32):
            rows = np.arange(first, first + 32)
            estimator.observe(Outcome(0, rows, np.full(32, 8.0), 8.0 - right[rows]))
        assert estimator.difficulty()[512:].mean() == pytest.approx(1 - right.mean() / 8, abs=0.01)
        mixed = float(((right > 0) & (right < 8)).mean())
        assert estimator.mixed(8)[512:].mean() == pytest.approx(mixed, abs=0.05)


def test_where_nearly_all_groups_are_alike_no_variance_runs_away() -> None:
    """Prompts that never fail and such that always do could lie ever further apart."""
    rng, estimator = np.random.default_rng(0), LiveEstimator(600)
    for step in range(8):
        rows = np.sort(rng.choice(600, 128, replace=False))
        failures = np.where(rows % 3 == 0, 0.0, 8.0)
        estimator.observe(Outcome(step, rows, np.full(128, 8.0), failures))
    assert 5.0 < estimator.metrics()["own_deviation"] ** 2 <= 50.0 + 1e-9
    assert estimator.difficulty().mean() == pytest.approx(2 / 3, abs=0.05)
    older = estimator.state_dict()
    older["scalars"]["spread"]["own"] = 900.0
    again = LiveEstimator(600)
    again.load_state_dict(older)
    assert again.metrics()["own_deviation"] ** 2 == pytest.approx(50.0)


def test_a_policy_that_improves_is_followed() -> None:
    states, truth = world(200)
    estimator = LiveEstimator(200, lambda rows: Measured(states[rows], len(rows)))
    now = told(estimator, truth, 40, improve=0.05)
    assert estimator.difficulty().mean() == pytest.approx(now.mean(), abs=0.04)
    assert estimator.metrics()["difficulty_trend"] < -0.02


def test_what_surprises_fades_faster() -> None:
    _, truth = world(64)
    calm, wild = LiveEstimator(64), LiveEstimator(64)
    told(calm, truth, 30)
    rng = np.random.default_rng(3)
    for step in range(30):  # every prompt turns over again and again
        rows = np.sort(rng.choice(64, 32, replace=False))
        failures = np.where((rows + step // 5) % 2, 8.0, 0.0)
        wild.observe(Outcome(step, rows, np.full(32, 8.0), failures))
    assert wild.metrics()["evidence_fade"] > 5 * calm.metrics()["evidence_fade"]


def drifting(drift: float, noise: float, steps: int = 16) -> dict[str, Any]:
    """Both estimators beside each other on a policy whose truth can be enumerated; `noise` is that
    of the log-probs, as long responses have it. Error over the second half, and the last state."""
    policy, rng = TabularPolicy.random(120, seed=0), np.random.default_rng(1)
    buffer = RolloutBuffer(16, 10**6)
    both = {"plain": LiveEstimator(120), "rescored": RescoredEstimator(120, buffer)}
    errors: dict[str, list[float]] = {name: [] for name in both}
    for step in range(steps):
        rows = np.flatnonzero(rng.random(120) < 0.4)
        batch = policy.sample(np.repeat(rows, 8), rng)
        buffer.add(batch, step)
        failures = (1.0 - batch.reward_R).reshape(-1, 8).sum(axis=1)
        policy = policy.drifted(drift, rng)
        asked = both["rescored"].rescores
        for estimator in both.values():
            estimator.observe(Outcome(step, rows, np.full(len(rows), 8.0), failures))
        if asked:
            score = policy.score(buffer.batch(np.arange(len(buffer))))
            score = score + noise * rng.standard_normal(len(score))
            buffer.rescore(buffer["uid"], score, step + 1)
        for name, estimator in both.items():
            estimator.refresh(step + 1, rng)
            errors[name].append(float(np.abs(estimator.median() - policy.true_difficulty()).mean()))
    return {
        **{name: float(np.mean(values[steps // 2 :])) for name, values in errors.items()},
        "rescored_estimator": both["rescored"],
        "buffer": buffer,
    }


def test_rescoring_pays_where_weights_tell_and_rests_where_they_do_not() -> None:
    told = drifting(0.4, 0.0)
    assert told["rescored"] < 0.82 * told["plain"]
    assert told["rescored_estimator"].metrics()["weighed"] == 1.0
    assert told["rescored_estimator"].rescores
    lost = drifting(0.02, 8.0)
    assert lost["rescored"] < 1.02 * lost["plain"]
    assert lost["rescored_estimator"].metrics()["weighed"] == 0.0
    assert not lost["rescored_estimator"].rescores


def test_weights_that_are_all_one_change_nothing() -> None:
    same = drifting(0.0, 0.0)
    held = same["rescored_estimator"]._arrays
    np.testing.assert_allclose(held["memory_now_trials"], held["memory_trials"])
    np.testing.assert_allclose(held["memory_now_failures"], held["memory_failures"])


def test_the_state_continues_bit_for_bit() -> None:
    states, truth = world()

    def fresh() -> LiveEstimator:
        return LiveEstimator(400, lambda rows: Measured(states[rows], len(rows)), None, None)

    one, other = fresh(), fresh()
    told(one, truth, 4)
    state = one.state_dict()
    older = {**state["arrays"], "own": np.ones(400)}  # it was held when the fit had a mode of each
    other.load_state_dict({**state, "arrays": older})
    for estimator in (one, other):
        told(estimator, truth, 3, seed=5)
    np.testing.assert_array_equal(one.difficulty(), other.difficulty())
    np.testing.assert_array_equal(one.mixed(8), other.mixed(8))
    drifted = drifting(0.2, 0.0, steps=6)
    weighed, buffer = drifted["rescored_estimator"], drifted["buffer"]
    again = RescoredEstimator(120, buffer)
    again.load_state_dict(weighed.state_dict())
    for estimator in (weighed, again):
        rows = np.arange(40)
        estimator.observe(Outcome(6, rows, np.full(40, 8.0), rows % 9 * 1.0))
        estimator.refresh(7, np.random.default_rng(0))
    np.testing.assert_array_equal(weighed.median(), again.median())


def test_readings_stay_within_their_budget() -> None:
    states, truth = world()
    asked: list[int] = []

    def read(rows: Array) -> Measured:
        asked.append(len(rows))
        return Measured(states[rows], 10 * len(rows))

    estimator = LiveEstimator(400, read)
    assert estimator.read(0, np.random.default_rng(0), 10**6) == 0  # nothing came out yet
    told(estimator, truth, 1)
    assert asked == [400]
    assert estimator.read(5, np.random.default_rng(0), 105) == 100
    assert estimator.read(5, np.random.default_rng(0), 9) == 0
    assert estimator.read(6, np.random.default_rng(0), 10**6) == 130  # a part at the most
    with pytest.raises(InvalidInput, match="another model was read"):
        LiveEstimator.read(
            _with_states(estimator, states[:, :5]), 9, np.random.default_rng(0), 10**6
        )


def _with_states(estimator: LiveEstimator, states: Array) -> LiveEstimator:
    estimator._measures["states"] = lambda rows: Measured(states[rows], 10 * len(rows))
    return estimator


def test_rollouts_go_where_the_chance_of_a_mixed_group_grows_most() -> None:
    rate = np.array([0.5, 0.9, 0.05])
    sizes = np.arange(2, 9)
    chance = 1 - rate[:, None] ** sizes - (1 - rate[:, None]) ** sizes
    for budget in (6, 11, 17, 24):
        best = max(
            (sum(chance[q, n] for q, n in enumerate(pick)), pick)
            for pick in product(range(7), repeat=3)
            if sum(pick) + 6 == budget
        )
        found = allocate(chance, 2, budget)
        assert found.sum() == budget
        assert chance[np.arange(3), found - 2].sum() == pytest.approx(best[0])
    with pytest.raises(InvalidInput, match="between 6 and 24"):
        allocate(chance, 2, 25)


def curriculum_of(count: int, states: Array, **settings: object) -> Curriculum:
    config = CurriculumConfig().replace(
        {
            "estimator.name": "dare",
            "selection.name": "value",
            "selection.eta": 0.05,
            "rollout_budget": 64,
            "fresh_share": 1.0,
            "tiers": False,
            "max_tokens": 8,
            **settings,
        }
    )
    services = Services(states=lambda rows: Measured(states[rows], len(rows)))
    return Curriculum(
        PromptTable.from_columns([f"p{row}" for row in range(count)]), config, services
    )


def trained(curriculum: Curriculum, truth: Array, steps: int) -> list[float]:
    """Share of mixed groups of each step."""
    shares = []
    for _ in range(steps):
        plan = curriculum.plan()
        rng = np.random.default_rng(plan.step)
        rows = plan.rows()["prompt"]
        rewards = (rng.random(len(rows)) >= truth[rows]).astype(float).tolist()
        batch = curriculum.observe(rollouts_of(rows.tolist(), rewards))
        assert batch is not None
        shares.append(float(batch.varied_N.mean()))
        curriculum.refresh(None, 1000)
    return shares


def test_draws_by_value_find_groups_that_teach() -> None:
    states, _ = world(600)
    truth = 1 / (1 + np.exp(-(4 * states[:, 0] + 4)))  # most are hopeless
    drawn = trained(curriculum_of(600, states), truth, 20)
    alike = {"selection.name": "uniform", "selection.eta": 0.0}
    uniform = trained(curriculum_of(600, states, **alike), truth, 20)
    assert np.mean(drawn[8:]) > 1.5 * np.mean(uniform[8:])


def test_the_uniform_share_of_a_draw_stays_small_where_few_prompts_hold_the_weight() -> None:
    """By a mixture of weights it would fill the draw as soon as those few are taken."""
    config = CurriculumConfig().replace({"selection.name": "value", "selection.eta": 0.1}).selection
    worth = np.linspace(0.0, -40.0, 1000)  # the next prompt is always a little worse
    alike = np.zeros(1000, int)
    ranks = []
    for seed in range(50):
        drawn = Selector(config, 8).draw(
            worth, alike, np.ones(1000, bool), 40, np.random.default_rng(seed)
        )
        assert len(set(drawn.tolist())) == 40
        ranks.append(drawn)
    far = np.mean(np.array(ranks) >= 300)  # reached by the uniform share alone
    assert far == pytest.approx(0.1 * 0.7, abs=0.02)


def test_an_estimate_that_chooses_its_own_groups_does_not_forget_them() -> None:
    """A forecast is asked only where it hopes for a mixed group, and errs there more than it would
    elsewhere. An estimator that forgot more for each such error lost all that it had known after
    some 40 steps of a language model."""
    rng = np.random.default_rng(5)
    states, _ = world(1200)
    logit = 2.0 * states[:, 0] + 2.5 * rng.standard_normal(1200) + 1.5
    curriculum = curriculum_of(1200, states, rollout_budget=256)
    shares: list[float] = []
    for _ in range(70):
        before = curriculum.visits_P.copy()
        shares += trained(curriculum, 1 / (1 + np.exp(-logit)), 1)
        turn = curriculum.visits_P > before
        logit[turn] += 0.3 * rng.standard_normal(turn.sum()) - 0.25  # it learns, unevenly
        logit += 0.03 * rng.standard_normal(1200) - 0.01
    assert np.mean(shares[50:]) > 0.85 * np.mean(shares[15:35])
    assert curriculum.estimator.metrics()["evidence_fade"] < 0.02


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("sharpness", [16.0, 64.0])
def test_a_prompt_rests_after_its_turn(sharpness: float, scored: bool) -> None:
    states, truth = world(400)
    settings = {"selection.eta": 0.0, "selection.sharpness": sharpness}
    curriculum = curriculum_of(400, states, **settings)
    before: set[int] = set()
    for _ in range(6):
        plan = curriculum.plan()
        rows = plan.rows()["prompt"]
        assert not before & set(plan.prompt_P.tolist())
        before |= set(plan.prompt_P.tolist())
        found: list[float | None] = (truth[rows] < 0.5).astype(float).tolist()
        curriculum.observe(rollouts_of(rows.tolist(), found if scored else [None] * len(rows)))
        curriculum.refresh(None, 0)


def test_how_far_behind_a_resting_prompt_is() -> None:
    states, _ = world(400)
    curriculum = curriculum_of(400, states, **{"selection.sharpness": 64.0})
    chance = np.full(400, 0.9)
    chance[200:] = 0.05, *np.full(199, 0.04)
    curriculum.estimator.mixed = lambda size: chance  # type: ignore[method-assign]
    curriculum.last_step_P[:200] = 0
    curriculum.step = 1
    signal = curriculum._signal()
    assert signal[200] > signal[0] > signal[201]  # a twentieth of its chance is 0.045


def test_groups_that_the_memory_has_dropped_are_no_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dare.curriculum.estimators.dare.estimator.MEMORY", 12)
    states, truth = world(60)
    settings = {"selection.eta": 1.0}  # a uniform draw: any prompt may come back at any time
    curriculum = curriculum_of(60, states, **settings)
    came_back = 0
    for _ in range(25):
        remembered = set(curriculum.estimator.state_dict()["arrays"]["memory_prompt"].tolist())
        again = curriculum.visits_P[curriculum.plan().prompt_P] > 0
        came_back += len(set(curriculum.plan().prompt_P[again].tolist()) - remembered)
        trained(curriculum, truth, 1)
    assert came_back > 20
    assert np.isfinite(curriculum.difficulty()).all()


def test_a_run_goes_on_with_other_prompts() -> None:
    states, truth = world(60)
    first = curriculum_of(60, states)
    trained(first, truth, 4)
    wide = np.vstack([states[:50], states[:20]])
    second = curriculum_of(70, wide)
    second.load_state_dict(first.state_dict(), new_data=True)
    known = {name: row for row, name in enumerate(first.prompts.ids())}
    for row, name in enumerate(second.prompts.ids()):
        if name in known:
            assert second.visits_P[row] == first.visits_P[known[name]]
    trained(second, np.resize(truth, 70), 2)


def test_group_sizes_by_value_fill_the_budget_and_favour_what_is_seldom_mixed() -> None:
    states, truth = world(400)
    curriculum = curriculum_of(400, states, group_sizes="value", **{"selection.sharpness": 4.0})
    trained(curriculum, truth, 6)
    plan = curriculum.plan()
    assert plan.fresh_rollouts == 64
    assert 4 <= plan.group_size_P.min() < plan.group_size_P.max() <= 16
    chance = curriculum.estimator.mixed(8)[plan.prompt_P]
    assert np.corrcoef(chance, plan.group_size_P)[0, 1] < 0
    with pytest.raises(InvalidInput, match="smallest_group"):
        curriculum_of(400, states, smallest_group=9, group_sizes="value")
