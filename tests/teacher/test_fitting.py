"""A fitted head on prompts with a known answer, and the figures that judge it."""

from __future__ import annotations

import numpy as np
import pytest

from dare.teacher.fit import FitSettings, hold_out
from dare.teacher.fitting import best_line, expected_error, fit_teacher, recalibrated

SETTINGS = FitSettings(steps=300, references=64, hidden=32, batch=64, held_out=0.2, weight_decay=0)


def world(prompts: int = 600, dim: int = 12, policies: int = 2) -> tuple[np.ndarray, ...]:
    """Success depends on one direction of the embedding and on how able the policy is."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(prompts, dim)).astype(np.float32)
    ability = np.linspace(-0.5, 0.5, policies)[:, None]
    truth = 1 / (1 + np.exp(-(3 * np.tanh(rows[:, 0]) + ability)))
    rate = rng.binomial(16, truth) / 16
    labels = np.repeat([f"p@{k}" for k in range(policies)], prompts).astype(object)
    return np.tile(rows, (policies, 1)), rate.ravel(), labels, truth.ravel()


@pytest.fixture(scope="module")
def fitted() -> tuple[dict, tuple[np.ndarray, ...]]:
    rows, rate, labels, truth = world()
    _, about = fit_teacher(rows, rate, np.full(len(rate), 16.0), labels, SETTINGS)
    return about, (rows, rate, labels, truth)


def test_it_beats_the_mean_and_the_untrained_head_on_unseen_prompts(fitted: tuple) -> None:
    about, _ = fitted
    errors = about["errors"]
    assert errors["head"]["mae"] < 0.6 * errors["mean of references"]["mae"], errors
    assert errors["head"]["bce"] < errors["untrained head"]["bce"] < 1.0
    assert errors["head"]["pearson"] > 0.8
    assert errors["mean of references"]["pearson"] < 0.3
    assert errors["head"]["calibration_error"] < 0.1
    assert 0.7 < errors["head"]["slope"] < 1.5


def test_the_figures_are_of_the_held_out_prompts_alone(fitted: tuple) -> None:
    about, (rows, rate, _, truth) = fitted
    held = hold_out(rows, SETTINGS.held_out, np.random.default_rng([SETTINGS.seed, 2]))
    assert about["held_out_rows"] == held.sum() == 240
    assert about["held_out_rate"] == pytest.approx(rate[held].mean())
    assert about["prompts"] == 600
    # No prediction can have less cross-entropy than the truth, but for chance.
    best = -np.mean(truth * np.log(truth) + (1 - truth) * np.log1p(-truth))
    assert about["errors"]["head"]["bce"] > best - 0.03


def test_held_out_rates_change_nothing_but_the_figures() -> None:
    rows, rate, labels, _ = world(prompts=200)
    few = FitSettings(steps=20, references=32, hidden=8, batch=32, held_out=0.2)
    held = hold_out(rows, few.held_out, np.random.default_rng([few.seed, 2]))
    other = np.where(held, 1 - rate, rate)
    trials = np.full(len(rate), 16.0)
    (head, one), (same, two) = (fit_teacher(rows, r, trials, labels, few) for r in (rate, other))
    assert head.digest() == same.digest()
    assert one["history"] == two["history"]
    assert one["errors"] != two["errors"]


def test_slope_and_shift_undo_a_known_distortion() -> None:
    rng = np.random.default_rng(0)
    logit = rng.normal(size=4000) * 2
    truth = 1 / (1 + np.exp(-logit))
    for slope, shift in ((1.0, 0.0), (2.0, 0.5), (0.5, -1.0)):
        distorted = 1 / (1 + np.exp(-(logit - shift) / slope))
        assert best_line(distorted, truth) == pytest.approx((slope, shift, 0, 0), abs=1e-4)
        np.testing.assert_allclose(recalibrated(distorted, truth), truth, atol=1e-3)
    assert best_line(np.full(10, 0.3), rng.random(10)) is None
    assert best_line(np.r_[0.2, 0.8], np.r_[0.0, 1.0]) is None


def test_the_errors_of_the_line_are_its_spread_over_samples() -> None:
    rng = np.random.default_rng(0)
    logit = rng.normal(size=(200, 300))
    rates = rng.binomial(8, 1 / (1 + np.exp(-logit))) / 8
    predicted = 1 / (1 + np.exp(-logit))
    lines = [best_line(p, rate) for p, rate in zip(predicted, rates, strict=True)]
    found = np.array([line for line in lines if line is not None])
    assert len(found) == 200
    np.testing.assert_allclose(found[:, :2].mean(0), (1, 0), atol=0.02)
    np.testing.assert_allclose(found[:, :2].std(0), found[:, 2:].mean(0), rtol=0.15)


def test_calibration_error_is_the_gap_over_bins() -> None:
    predicted = np.r_[np.full(30, 0.25), np.full(10, 0.75)]
    rate = np.r_[np.full(30, 0.15), np.full(10, 1.0)]
    found = expected_error(predicted, rate, np.full(40, 8.0))
    assert found == pytest.approx((30 * 0.10 + 10 * 0.25) / 40)
