"""What predictions are worth in rollouts, against truths drawn from a known Beta distribution."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import small

from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators.base import Outcome
from dare.curriculum.estimators.snis import SnisEstimator
from dare.curriculum.worth import (
    honesty,
    judge_claims,
    judge_forecasts,
    judge_lean,
    lean,
    strength,
    without_lean,
)


def groups(worth: float, count: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Failures, trials, predictions, and the true rates, which are Beta around these."""
    rng = np.random.default_rng(seed)
    rate = rng.uniform(0.1, 0.9, count)
    trials = rng.integers(2, 17, count).astype(float)
    true = rng.beta(worth * rate, worth * (1 - rate))
    return rng.binomial(trials.astype(int), true).astype(float), trials, rate, true


@pytest.mark.parametrize("worth", [1.0, 4.0, 16.0])
def test_the_strength_of_forecasts_is_found(worth: float) -> None:
    sums = {"excess": 0.0, "claimed": 0.0}
    assert strength(sums, 32.0) == 0.0
    for seed in range(100):
        failures, trials, rate, _ = groups(worth, 50, seed)
        judge_forecasts(sums, failures, trials, rate)
    assert strength(sums, 32.0) == pytest.approx(worth, rel=0.4)
    assert strength(sums, 0.5) == 0.5


@pytest.mark.parametrize(("claimed", "real"), [(2.0, 2.0), (9.0, 9.0), (9.0, 1.0), (30.0, 5.0)])
def test_a_claim_is_cut_to_what_it_was_worth(claimed: float, real: float) -> None:
    """k failures in `real` rollouts, said to be as good as `claimed`; the truth is known beside."""
    sums = {"excess": 0.0, "claimed": 0.0}
    assert honesty(sums) == 1.0
    rng = np.random.default_rng(0)
    for _ in range(100):
        true = rng.beta(0.8, 0.8, 50)
        rate = rng.binomial(int(real), true) / real
        trials = rng.integers(2, 17, 50).astype(float)
        failures = rng.binomial(trials.astype(int), true).astype(float)
        judge_claims(sums, failures, trials, rate, np.full(50, claimed), true * (1 - true))
    assert honesty(sums) == pytest.approx(real / claimed, rel=0.25)


@pytest.mark.parametrize("shift", [-0.8, -0.3, 0.0, 0.5])
def test_a_lean_of_all_rates_is_found_and_taken_off(shift: float) -> None:
    rng = np.random.default_rng(0)
    sums = {"lean_missed": 0.0, "lean_square": 0.0}
    assert lean(sums) == 0.0
    for _ in range(100):
        said = rng.uniform(0.2, 0.8, 20)
        true = 1 / (1 + np.exp(-(np.log(said / (1 - said)) + shift)))
        judge_lean(sums, rng.binomial(8, true).astype(float), np.full(20, 8.0), said)
    assert lean(sums) == pytest.approx(shift, abs=0.1)
    assert np.abs(without_lean(sums, said) - true).max() < 0.03
    edges = np.array([0.0, 1.0])
    assert without_lean(sums, edges).tolist() == [0.0, 1.0]


def test_a_lean_is_held_back_until_there_are_groups_and_never_beyond_one() -> None:
    sums = {"lean_missed": 0.0, "lean_square": 0.0}
    judge_lean(sums, np.zeros(2), np.full(2, 8.0), np.full(2, 0.5))
    assert -0.3 < lean(sums) < 0
    judge_lean(sums, np.zeros(500), np.full(500, 8.0), np.full(500, 0.5))
    assert lean(sums) == -1.0


def test_a_modest_claim_is_not_raised() -> None:
    sums = {"excess": 0.0, "claimed": 0.0}
    for seed in range(100):
        failures, trials, rate, true = groups(30.0, 50, seed)
        judge_claims(sums, failures, trials, rate, np.full(50, 2.0), true * (1 - true))
    assert honesty(sums) == 1.0


def trained(forecast: bool) -> SnisEstimator:
    """64 prompts that all changed sides between two visits, as the forecast says."""
    config = small("dare")
    estimator = SnisEstimator(64, RolloutBuffer(32, 64), config.estimator)
    rows, trials = np.arange(64), np.full(64, 8.0)
    before = np.where(rows % 2, 7.0, 1.0)
    if forecast:
        estimator.set_forecast((8.0 - before) / 8.0, 4.0)
    estimator.observe(Outcome(0, rows, trials, before))
    for step in range(1, 4):
        half = rows[rows % 3 == step - 1]
        estimator.observe(Outcome(step, half, trials[half], 8.0 - before[half]))
    return estimator


def test_a_past_that_was_wrong_gives_way_to_the_forecast() -> None:
    estimator = trained(True)
    last = np.arange(64)[np.arange(64) % 3 == 2]
    honest = honesty(estimator.state_dict()["scalars"])
    assert honest < 0.5
    evidence = estimator.state_dict()["arrays"]["own_evidence"]
    assert np.allclose(estimator.evidence(), honest * evidence + 4.0)
    expected = (8.0 - np.where(last % 2, 7.0, 1.0)) / 8.0
    assert np.abs(estimator.difficulty()[last] - expected).mean() < 0.15


@pytest.mark.parametrize("size", [2, 8])
def test_a_past_that_still_holds_keeps_its_word(size: int) -> None:
    """Rates that do not change, U-shaped as real ones are, and a forecast that is roughly right."""
    rng = np.random.default_rng(1)
    rate = rng.beta(0.5, 0.5, 4000)
    estimator = SnisEstimator(4000, RolloutBuffer(32, 64), small("dare").estimator)
    estimator.set_forecast(rng.beta(8 * rate + 1e-3, 8 * (1 - rate) + 1e-3), 8.0)
    rows, trials = np.arange(4000), np.full(4000, float(size))
    for step in range(2):
        estimator.observe(Outcome(step, rows, trials, rng.binomial(size, rate).astype(float)))
    assert honesty(estimator.state_dict()["scalars"]) > 0.75


def test_a_forecast_worth_nothing_changes_nothing() -> None:
    rows, trials = np.arange(64), np.full(64, 8.0)
    found = []
    for forecast in (True, False):
        estimator = SnisEstimator(64, RolloutBuffer(32, 64), small("dare").estimator)
        if forecast:
            estimator.set_forecast(np.full(64, 0.9), 0.0)
        for step in range(3):
            failures = (rows * (step + 3)) % 9.0
            estimator.observe(Outcome(step, rows, trials, failures))
        found.append((estimator.difficulty().tolist(), estimator.evidence().tolist()))
    assert found[0] == found[1]


def test_without_a_forecast_nothing_is_judged() -> None:
    assert trained(False).state_dict()["scalars"]["claimed"] == 0.0
