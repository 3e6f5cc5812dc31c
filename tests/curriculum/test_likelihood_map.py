"""The map from likelihood to difficulty: its fit, and what each group counts for."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from dare.curriculum.likelihood_map import LikelihoodMap, balance, design, fit_logistic, fit_map


def logistic(value: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-value))


def optimum(inputs: np.ndarray, failures: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """The penalised maximum of the likelihood, by another solver."""
    penalty = np.r_[1e-3, np.full(inputs.shape[1] - 1, 3.0)]

    def loss(weight: np.ndarray) -> float:
        logit = inputs @ weight
        likelihood = failures * logit - trials * np.logaddexp(0, logit)
        return float(-likelihood.sum() + 0.5 * (penalty * weight**2).sum())

    return minimize(loss, np.zeros(inputs.shape[1]), method="BFGS", options={"gtol": 1e-6}).x


def test_cold_start_and_age_have_no_products() -> None:
    values = np.array([[2.0, 3.0, 5.0, 7.0]])
    assert design(values).tolist() == [[1.0, 2.0, 3.0, 5.0, 7.0, 4.0, 6.0, 9.0]]


def test_the_logistic_fit_is_the_optimum_another_solver_finds() -> None:
    rng = np.random.default_rng(0)
    inputs = design(rng.normal(size=(200, 3)))
    trials = rng.integers(2, 9, 200).astype(float)
    rate = logistic(inputs @ rng.normal(size=inputs.shape[1]))
    failures = rng.binomial(trials.astype(int), rate).astype(float)
    wanted = optimum(inputs, failures, trials)
    assert np.allclose(fit_logistic(inputs, failures, trials), wanted, atol=1e-4)
    start = np.full(inputs.shape[1], 2.0)  # where it starts does not matter
    assert np.allclose(fit_logistic(inputs, failures, trials, start=start), wanted, atol=1e-4)


def test_separable_groups_do_not_break_the_fit() -> None:
    value = np.linspace(-1, 1, 40)[:, None]
    failures = np.where(value[:, 0] > 0, 8.0, 0.0)
    weight = fit_logistic(design(np.hstack([value, value])), failures, np.full(40, 8.0))
    assert np.isfinite(weight).all()


def test_a_group_counts_for_the_prompts_it_stands_for() -> None:
    drawn = np.r_[np.full(90, 0.55), np.full(10, 0.02)]
    everyone = np.r_[np.full(40, 0.51), np.full(160, 0.07), np.full(200, 0.95)]
    worth = balance(drawn, everyone)
    assert np.isclose(worth.mean(), 1.0)
    # 10 % of the prompts are in the bin of 90 % of the groups, 40 % in that of 10 %.
    assert np.isclose(worth[-1] / worth[0], np.sqrt((0.4 / 0.1) / (0.1 / 0.9)))
    assert np.allclose(balance(drawn, drawn), 1.0)


def test_groups_of_a_kind_that_there_is_no_more_are_not_forgotten() -> None:
    assert np.allclose(balance(np.full(50, 0.9), np.full(80, 0.1)), 1.0)
    few = balance(np.r_[np.full(997, 0.9), np.full(3, 0.1)], np.full(80, 0.1))
    assert np.isclose(few[-1] / few[0], 16.0)  # between the two bounds, and no more


def test_the_second_fit_is_the_first_with_groups_weighted() -> None:
    rng = np.random.default_rng(1)
    everyone = rng.normal(size=(500, 3)) * 2
    groups = everyone[:120] * 0.3
    trials = np.full(120, 8.0)
    failures = rng.binomial(8, logistic(groups.sum(1))).astype(float)
    found = fit_map(groups, failures, trials, everyone)
    centre, scale = everyone.mean(0), everyone.std(0)
    inputs = design((groups - centre) / scale)
    first = LikelihoodMap(centre, scale, optimum(inputs, failures, trials))
    worth = balance(first.predict(groups), first.predict(everyone))
    assert worth.std() > 0.2
    assert np.allclose(found.weight, optimum(inputs, worth * failures, worth * trials), atol=1e-3)


def test_groups_of_medium_difficulty_do_not_decide_about_the_ends() -> None:
    """Groups are drawn by the truth, which no quadratic is and which the features tell in part."""
    rng = np.random.default_rng(2)
    everyone = rng.normal(size=(4000, 3)) * [2, 1, 1]
    value, hidden = everyone[:, 0], rng.normal(size=4000)
    truth = logistic(np.clip(value + 0.3 * value**3, -20, 20) + hidden)
    drawn = rng.random(4000) < np.where(np.abs(truth - 0.5) < 0.2, 0.6, 0.03)
    trials = np.full(drawn.sum(), 8.0)
    failures = rng.binomial(8, truth[drawn]).astype(float)
    second = fit_map(everyone[drawn], failures, trials, everyone)
    inputs = design((everyone[drawn] - second.centre) / second.scale)
    first = second._replace(weight=fit_logistic(inputs, failures, trials))
    error = [np.abs(one.predict(everyone) - truth) for one in (first, second)]
    ends = np.abs(truth - 0.5) > 0.4
    assert error[1][ends].mean() < 0.85 * error[0][ends].mean()
    assert error[1][~ends].mean() < error[0][~ends].mean()


def test_far_outside_it_stays_at_the_edge() -> None:
    rng = np.random.default_rng(3)
    everyone = rng.normal(size=(300, 3))
    failures = rng.binomial(8, logistic(2 * everyone[:, 0])).astype(float)
    found = fit_map(everyone, failures, np.full(300, 8.0), everyone)
    edge = found.centre + 3 * found.scale
    assert found.predict(edge[None] * 100)[0] == found.predict(edge[None])[0]
