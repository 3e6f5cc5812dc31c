"""Intervals against scipy, and against simulations that count how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dare.evaluation.intervals import (
    mean_rate,
    paired_difference,
    sign_test,
    student,
    t_inside,
    t_quantile,
    two_way,
    wilson,
)


@pytest.mark.parametrize("free", [1, 1.3, 2, 3, 4, 5.7, 9, 30, 200, 1e4, 1e6])
def test_quantiles_are_scipys(free: float) -> None:
    assert t_quantile(free) == pytest.approx(stats.t.ppf(0.975, free), rel=1e-7)
    assert t_quantile(free, 0.8) == pytest.approx(stats.t.ppf(0.9, free), rel=1e-7)
    assert t_inside(1.5, free) == pytest.approx(1 - 2 * stats.t.sf(1.5, free), rel=1e-9)


def test_student_is_scipys() -> None:
    values = np.random.default_rng(0).normal(0.5, 0.1, 5)
    theirs = stats.t.interval(0.95, 4, values.mean(), stats.sem(values))
    assert student(values.tolist()) == pytest.approx((values.mean(), *theirs))
    assert student([0.3]) == (0.3, None, None)
    assert student([0.3, None]) == student([]) == (None, None, None)


def covered(intervals: list[tuple[float | None, ...]], truth: float) -> float:
    return float(np.mean([low <= truth <= high for _, low, high in intervals]))


def test_five_seeds_are_covered_by_t_and_not_by_the_bootstrap() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(2000, 5))
    assert covered([student(row.tolist()) for row in values], 0.0) == pytest.approx(0.95, abs=0.015)
    drawn = values[:, rng.integers(0, 5, (300, 5))].mean(axis=2)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=1)
    assert np.mean((low <= 0) & (high >= 0)) < 0.87


@pytest.mark.parametrize(
    ("seeds", "problems", "of_seed", "of_problem", "rest"),
    [
        (3, 200, 0.01, 0.4, 0.3),  # problems decide
        (5, 300, 0.03, 0.0, 0.3),  # seeds decide
        (5, 300, 0.03, 0.3, 0.3),
        (3, 300, 0.05, 0.2, 0.2),
    ],
)
def test_other_seeds_and_other_problems_are_covered(
    seeds: int, problems: int, of_seed: float, of_problem: float, rest: float
) -> None:
    rng = np.random.default_rng(2)
    both, alone = [], []
    for _ in range(600):
        value = rng.normal(0, of_seed, (seeds, 1)) + rng.normal(0, of_problem, (1, problems))
        value = value + rng.normal(0, rest, (seeds, problems))
        both.append(two_way(value))
        alone.append(student(value.mean(axis=1).tolist()))
    assert 0.93 <= covered(both, 0.0) <= 0.985
    if of_problem == 0.4:
        assert covered(alone, 0.0) < 0.85  # seeds on the same problems say nothing of others


def test_right_and_wrong_answers_are_covered() -> None:
    """Three policies that differ a little, 200 problems of very unequal difficulty."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(600):
        ease = rng.normal(0, 2.5, (1, 200)) + rng.normal(0, 0.1, (3, 1))
        found.append(two_way((rng.random((3, 200)) < 1 / (1 + np.exp(-ease))).astype(float)))
    assert 0.93 <= covered(found, 0.5) <= 0.985


def test_the_two_way_variance_is_that_of_an_analysis_of_variance() -> None:
    value = np.random.default_rng(4).normal(size=(4, 6)) + np.arange(6) + 3 * np.arange(4)[:, None]
    mean, low, high = two_way(value)
    rows, columns = value.mean(1), value.mean(0)
    ms_s = 6 * rows.var(ddof=1)
    ms_p = 4 * columns.var(ddof=1)
    ms_e = sum(
        (value[s, p] - rows[s] - columns[p] + mean) ** 2 for s in range(4) for p in range(6)
    ) / (3 * 5)
    total = ms_s + ms_p - ms_e
    free = total**2 / (ms_s**2 / 3 + ms_p**2 / 5 + ms_e**2 / 15)
    half = max(
        stats.t.ppf(0.975, free) * np.sqrt(total / 24), stats.t.ppf(0.975, 3) * np.sqrt(ms_s / 24)
    )
    assert (low, high) == pytest.approx((value.mean() - half, value.mean() + half), rel=1e-4)
    assert two_way(np.full((3, 5), 0.25)) == (0.25, 0.25, 0.25)


def test_several_responses_a_problem_are_covered() -> None:
    rng = np.random.default_rng(5)
    found = [mean_rate(rng.binomial(8, rng.beta(0.3, 0.1, 60)) / 8) for _ in range(800)]
    assert covered(found, 0.75) == pytest.approx(0.95, abs=0.02)
    assert mean_rate(np.array([1.0, 0.0, 1.0, 1.0]))[1:] == wilson(0.75, 4)


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (5, 0), (7, 3), (12, 12), (40, 61)])
def test_the_sign_test_is_scipys(better: int, worse: int) -> None:
    total = better + worse
    theirs = stats.binomtest(better, total).pvalue if total else 1.0
    assert sign_test(better, worse) == sign_test(worse, better) == pytest.approx(theirs)


@pytest.mark.parametrize(("better", "worse"), [(0.02, 0.02), (0.05, 0.02), (0.15, 0.1)])
def test_a_paired_difference_is_covered(better: float, worse: float) -> None:
    rng = np.random.default_rng(6)
    chances = [better, worse, 1 - better - worse]
    drawn = rng.choice([1.0, -1.0, 0.0], p=chances, size=(1500, 200))
    found = [paired_difference(row, np.zeros(200)) for row in drawn]
    assert covered(found, better - worse) == pytest.approx(0.95, abs=0.02)


def test_two_models_that_agree_are_not_certainly_equal() -> None:
    same = np.ones(100)
    mean, low, high = paired_difference(same, same)
    assert mean == 0.0
    assert low == -high != 0.0
    assert paired_difference(same[:0], same[:0]) == (None, None, None)
    apart = np.random.default_rng(7).random(30)
    theirs = stats.t.interval(0.95, 29, apart.mean(), stats.sem(apart))
    assert paired_difference(apart, np.zeros(30))[1:] == pytest.approx(theirs)
