"""HistoryFilter against a per-prompt loop, and what it learns about simulated prompts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from worlds import examples

from dare.curriculum.estimators import history
from dare.curriculum.estimators.history import (
    RATES,
    HistoryFilter,
    beta_median,
    predictive_median,
)


class Naive:
    """The module's docstring, prompt by prompt and rate by rate."""

    def __init__(self, prior: list[float], strength: float, rates: tuple[float, ...]) -> None:
        self.prior, self.strength, self.rates = prior, strength, rates
        self.known: dict[int, list[tuple[float, float, float, int]]] = {}
        self.sums = [{"slope": 0.0, "square": 0.0, "groups": 0.0, "loss": 0.0} for _ in self.rates]

    def at(self, row: int, step: int, i: int) -> tuple[float, float, float]:
        """S, W, U after fading: the variance 1/W grows by c a step."""
        if row not in self.known:
            return self.strength * self.prior[row], self.strength, self.strength * step
        s, w, u, last = self.known[row][i]
        fade = 1 / (1 + self.rates[i] * w * (step - last))
        return s * fade, w * fade, u * fade

    def drift(self, i: int) -> float:
        part = self.sums[i]
        caution = part["groups"] / (part["groups"] + history._CAUTION)
        return part["slope"] / (part["square"] + 1e-12) * caution

    def predict(self, row: int, step: int, i: int) -> tuple[float, float, float]:
        """Raw rate, mean age of the evidence, and the rate moved by the drift."""
        s, w, u = self.at(row, step, i)
        raw = min(max(s / w, 1e-6), 1 - 1e-6)
        age = step - u / w
        shift = min(max(self.drift(i) * age, -1.0), 1.0)
        logit = math.log(raw / (1 - raw)) + shift
        return raw, age, 1 / (1 + math.exp(-logit))

    def observe(self, groups: list[tuple[int, int, int]], step: int) -> None:
        keep = history._MEMORY ** (len(groups) / max(len(self.known), len(groups)))
        for i in range(len(self.rates)):
            new = {"slope": 0.0, "square": 0.0, "groups": 0.0, "loss": 0.0}
            for row, trials, failures in groups:
                if row in self.known:
                    raw, age, told = self.predict(row, step, i)
                    lever = raw * (1 - raw) * age
                    rate = failures / trials
                    new["slope"] += lever * (rate - raw)
                    new["square"] += lever**2
                    new["groups"] += 1
                    likely = min(max(told, 0.02), 0.98)
                    weight = self.at(row, step, i)[1]
                    law = stats.betabinom(trials, weight * likely, weight * (1 - likely))
                    ways = math.log(math.comb(trials, failures))
                    new["loss"] += ways - float(law.logpmf(failures))
            # The drift must not move while this step's groups are still being predicted.
            self.sums[i] = {name: keep * self.sums[i][name] + new[name] for name in new}
        faded = {row: [self.at(row, step, i) for i in range(len(self.rates))] for row, *_ in groups}
        for row, trials, failures in groups:
            self.known[row] = [
                (s + failures, w + trials, u + trials * step, step) for s, w, u in faded[row]
            ]


@st.composite
def lives(draw: Any) -> list[tuple[int, list[tuple[int, int, int]]]]:
    """Steps (some skipped) with groups of distinct prompts."""
    step, found = 0, []
    for _ in range(draw(st.integers(1, 12))):
        rows = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True))
        trials = draw(st.integers(1, 16))
        found.append((step, [(row, trials, draw(st.integers(0, trials))) for row in rows]))
        step += draw(st.integers(1, 30))
    return found


@given(lives(), st.lists(st.floats(0, 1), min_size=6, max_size=6), st.floats(0.05, 4))
@examples(80)
def test_it_is_the_loop_of_its_docstring(life: Any, prior: list[float], strength: float) -> None:
    rates = (0.0, 1e-4, 3e-3, 0.05)
    fast, naive = HistoryFilter(6, strength, rates), Naive(prior, strength, rates)
    fast.arrays["prior"][:] = prior
    for step, groups in life:
        rows, trials, failures = (np.array(column) for column in zip(*groups, strict=True))
        fast.observe(rows, trials.astype(float), failures.astype(float), step)
        naive.observe(groups, step)
    for name in ("slope", "square", "groups", "loss"):
        expected = [part[name] for part in naive.sums]
        np.testing.assert_allclose(fast.population[name], expected, rtol=2e-3, atol=2e-3)
    best = int(np.argmin(fast.population["loss"])) if any(fast.population["loss"]) else 2
    assert fast.best == best
    assert fast.rate == rates[best]
    later = life[-1][0] + 7
    rate, evidence = fast.estimate(np.arange(6), later)
    for row in range(6):
        assert evidence[row] == pytest.approx(naive.at(row, later, best)[1], rel=1e-4)
        assert rate[row] == pytest.approx(naive.predict(row, later, best)[2], abs=2e-3)


def test_evidence_fades_like_the_variance_of_a_random_walk() -> None:
    one = HistoryFilter(1, 1e-9, (0.01,))
    one.observe(np.array([0]), np.array([8.0]), np.array([4.0]), 0)
    for step in (0, 1, 10, 1000):
        _, evidence = one.estimate(np.array([0]), step)
        assert 1 / evidence[0] == pytest.approx(1 / 8 + 0.01 * step, rel=1e-5)


def test_without_forgetting_it_counts() -> None:
    rng = np.random.default_rng(0)
    counter = HistoryFilter(3, 0.5, (0.0,))
    counter.arrays["prior"][:] = [0.1, 0.5, 0.9]
    failures, trials = np.zeros(3), np.zeros(3)
    for step in range(30):
        rows = np.flatnonzero(rng.random(3) < 0.7)
        new = rng.integers(0, 9, len(rows)).astype(float)
        counter.observe(rows, np.full(len(rows), 8.0), new, step)
        failures[rows] += new
        trials[rows] += 8
    counter.population["slope"] = [0.0]
    rate, evidence = counter.estimate(np.arange(3), 30)
    np.testing.assert_allclose(evidence, trials + 0.5, rtol=1e-5)
    np.testing.assert_allclose(
        rate, (failures + 0.5 * np.array([0.1, 0.5, 0.9])) / (trials + 0.5), rtol=1e-4
    )


def simulate(sigma: float, slope: float, seed: int, steps: int = 120) -> HistoryFilter:
    """Prompts whose logits wander by sigma a step and fall together by `slope` a step."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(0, 1.2, 400)
    learner = HistoryFilter(400, 0.1)
    for step in range(steps):
        rows = np.sort(rng.choice(400, 80, replace=False))
        true = 1 / (1 + np.exp(-logit[rows]))
        learner.observe(rows, np.full(80, 8.0), rng.binomial(8, true).astype(float), step)
        logit = logit + sigma * rng.normal(size=400) - slope
    return learner


@pytest.mark.parametrize("seed", [0, 1])
def test_it_forgets_fast_only_where_difficulty_moves_fast(seed: int) -> None:
    static = simulate(0.0, 0.0, seed)
    drifting = simulate(0.5, 0.0, seed)
    middle = len(RATES) // 2
    assert static.best < middle < drifting.best
    assert static.rate < drifting.rate / 20


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_visit_before_is_enough_to_tell_how_fast(seed: int) -> None:
    """All rates predict the same then, and only what they claim to know differs."""
    best = []
    for changed in (0, 80, 400):
        rng = np.random.default_rng(seed)
        learner = HistoryFilter(400, 0.1)
        true = rng.beta(0.3, 0.3, 400)
        for step in (0, 10):
            failures = rng.binomial(8, true).astype(float)
            learner.observe(np.arange(400), np.full(400, 8.0), failures, step)
            true[:changed] = rng.beta(0.3, 0.3, changed)
        best.append(learner.best)
    assert best[0] <= 1
    assert min(best[1:]) >= 4


@pytest.mark.parametrize("seed", [0, 1])
def test_it_sees_the_population_improve(seed: int) -> None:
    better, worse, still = (simulate(0.02, slope, seed) for slope in (0.03, -0.03, 0.0))
    assert better.drift[better.best] == pytest.approx(-0.03, rel=0.6)
    assert worse.drift[worse.best] == pytest.approx(0.03, rel=0.6)
    assert abs(still.drift[still.best]) < 0.01


def test_the_drift_makes_old_estimates_better() -> None:
    rng = np.random.default_rng(4)
    logit = rng.normal(0, 1.2, 400)
    learner = HistoryFilter(400, 0.1)
    for step in range(60):
        rows = np.sort(rng.choice(400, 80, replace=False))
        true = 1 / (1 + np.exp(-(logit[rows] - 0.03 * step)))
        learner.observe(rows, np.full(80, 8.0), rng.binomial(8, true).astype(float), step)
    true = 1 / (1 + np.exp(-(logit - 0.03 * 75)))
    with_drift = learner.estimate(np.arange(400), 75)[0]
    learner.population["slope"] = [0.0] * len(RATES)
    without = learner.estimate(np.arange(400), 75)[0]
    assert np.abs(with_drift - true).mean() < 0.9 * np.abs(without - true).mean()


@given(st.floats(0, 1), st.floats(4, 60))
@examples(100)
def test_the_beta_median_is_near_the_exact_one(rate: float, evidence: float) -> None:
    a, b = max(evidence * rate, 1e-6), max(evidence * (1 - rate), 1e-6)
    exact = stats.beta.median(a, b)
    assert beta_median(np.array([rate]), np.array([evidence]))[0] == pytest.approx(exact, abs=0.05)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 60))
@examples(150)
def test_the_beta_median_is_symmetric_and_monotone(p: float, q: float, evidence: float) -> None:
    low, high = sorted((p, q))
    weight = np.full(4, evidence)
    found = beta_median(np.array([low, high, 1 - low, 0.5]), weight)
    assert ((found >= 0) & (found <= 1)).all()
    assert found[0] <= found[1] + 1e-12
    assert found[2] == pytest.approx(1 - found[0], abs=1e-9)
    assert found[3] == pytest.approx(0.5)


@given(st.floats(0.02, 0.98), st.floats(0.5, 40), st.integers(1, 16))
@examples(80)
def test_the_predictive_median_is_that_of_scipy(rate: float, evidence: float, group: int) -> None:
    law = stats.betabinom(group, evidence * rate, evidence * (1 - rate))
    found = predictive_median(np.array([rate]), np.array([evidence]), group)[0] * group
    k = round(float(found))
    assert found == pytest.approx(k)
    assert law.cdf(k) >= 0.5 - 1e-9
    assert k == 0 or law.cdf(k - 1) <= 0.5 + 1e-9
