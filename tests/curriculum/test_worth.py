"""What predictions are worth in rollouts, against truths drawn from a known Beta distribution."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import small

from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators.base import Outcome
from dare.curriculum.estimators.snis import SnisEstimator
from dare.curriculum.worth import add_errors, honesty, strength


def groups(worth: float, count: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Failures, trials and predictions, the true rates being Beta around these."""
    rng = np.random.default_rng(seed)
    rate = rng.uniform(0.1, 0.9, count)
    trials = rng.integers(2, 17, count).astype(float)
    true = rng.beta(worth * rate, worth * (1 - rate))
    return rng.binomial(trials.astype(int), true).astype(float), trials, rate


@pytest.mark.parametrize("worth", [1.0, 4.0, 16.0])
def test_the_strength_is_found(worth: float) -> None:
    sums = {"excess": 0.0, "claimed": 0.0}
    assert strength(sums, 32.0) == 0.0
    for seed in range(100):
        failures, trials, rate = groups(worth, 50, seed)
        add_errors(sums, failures, trials, rate, rate)
    assert strength(sums, 32.0) == pytest.approx(worth, rel=0.4)
    assert strength(sums, 0.5) == 0.5


@pytest.mark.parametrize(("claimed", "real"), [(9.0, 9.0), (9.0, 1.0), (30.0, 5.2)])
def test_a_claim_is_cut_to_what_it_was_worth(claimed: float, real: float) -> None:
    sums = {"excess": 0.0, "claimed": 0.0}
    assert honesty(sums) == 1.0
    for seed in range(100):
        failures, trials, rate = groups(real, 50, seed)
        add_errors(sums, failures, trials, rate, rate, np.full(50, claimed))
    assert honesty(sums) == pytest.approx((real + 1) / (claimed + 1), rel=0.3)


def test_a_modest_claim_is_not_raised() -> None:
    sums = {"excess": 0.0, "claimed": 0.0}
    for seed in range(100):
        failures, trials, rate = groups(30.0, 50, seed)
        add_errors(sums, failures, trials, rate, rate, np.full(50, 2.0))
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
    assert np.abs(estimator.difficulty()[last] - expected).mean() < 0.35


def test_without_a_forecast_nothing_is_judged() -> None:
    assert trained(False).state_dict()["scalars"]["claimed"] == 0.0
