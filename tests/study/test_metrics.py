"""Every figure of a comparison against an example that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from dare.study.metrics import (
    auc,
    bootstrap,
    bootstrap_median,
    median_reached,
    memory_mb,
    reached,
    seconds,
    speed_up,
)


def curve(*points: tuple[int, int, float]) -> list[dict[str, Any]]:
    names = ("step", "generated_tokens_total", "accuracy")
    return [dict(zip(names, point, strict=True)) for point in points]


LINE = curve((0, 0, 0.2), (5, 100, 0.4), (10, 200, 0.6))


@pytest.mark.parametrize(
    ("target", "step"), [(0.1, 0), (0.2, 0), (0.4, 5), (0.41, 10), (0.7, None)]
)
def test_s_tau_is_the_first_evaluation_at_or_above_the_target(target, step):
    found = reached(LINE, target)
    assert (found and found["step"]) == step


def test_s_tau_does_not_wait_for_a_curve_that_dips_again():
    dip = curve((0, 0, 0.2), (5, 100, 0.5), (10, 200, 0.3), (15, 300, 0.6))
    assert reached(dip, 0.45) == dip[1]


def test_speed_up_is_the_ratio_of_the_base_to_the_method():
    assert speed_up(118, 42) == pytest.approx(2.81, abs=0.005)  # the paper's own example
    assert speed_up(118, None) == 0.0
    assert speed_up(None, 42) is None
    assert speed_up(118, 0) is None


def test_auc_of_a_line_is_its_middle():
    # accuracy = 0.2 + 0.002 t: the mean over [0, H] is 0.2 + 0.001 H.
    for horizon in (200, 150, 37):
        assert auc(LINE, horizon) == pytest.approx(0.2 + 0.001 * horizon)


def test_auc_of_uneven_evaluations_is_the_sum_of_trapezia():
    uneven = curve((0, 0, 0.0), (1, 10, 1.0), (2, 100, 1.0))
    assert auc(uneven, 100) == pytest.approx((0.5 * 10 + 90) / 100)
    assert auc(uneven, 2, axis="step") == pytest.approx((0.5 + 1.0) / 2)


def test_auc_is_flat_before_the_first_and_after_the_last_evaluation():
    late = curve((5, 100, 0.4), (10, 200, 0.6))
    assert auc(late, 300) == pytest.approx((0.4 * 100 + 0.5 * 100 + 0.6 * 100) / 300)


def test_auc_of_the_paper_is_the_mean_of_neighbours():
    steps = curve(*((s, s, a) for s, a in enumerate((0.1, 0.5, 0.2, 0.9))))
    paper = sum((steps[i]["accuracy"] + steps[i + 1]["accuracy"]) / 2 for i in range(3)) / 3
    assert auc(steps, 3, axis="step") == pytest.approx(paper)


def test_a_median_counts_what_is_never_reached_as_latest():
    assert median_reached([20, 30, 25]) == 25
    assert median_reached([20, 30]) == 25
    assert median_reached([20, None, 30]) == 30
    assert median_reached([20, None]) is None
    assert median_reached([]) is None


def test_the_bootstrap_interval_of_two_values_are_the_values():
    # Means of two draws from {0, 1}: 0, 1/2 and 1 with chances 1/4, 1/2 and 1/4.
    assert bootstrap([0.0, 1.0]) == (0.5, 0.0, 1.0)
    assert bootstrap([0.3]) == (0.3, 0.3, 0.3)
    assert bootstrap([0.3, None]) == (None, None, None)
    assert bootstrap([]) == (None, None, None)


def test_the_bootstrap_interval_of_many_values_is_the_normal_one():
    values = [i / 99 for i in range(100)]  # standard deviation of the mean: 0.02916
    mean, low, high = bootstrap(values)
    assert mean == pytest.approx(0.5)
    assert (low, high) == (pytest.approx(0.443, abs=0.006), pytest.approx(0.557, abs=0.006))


def test_the_interval_of_a_median_may_end_beyond_the_horizon():
    assert bootstrap_median([10, 10, 10]) == (10, 10, 10)
    assert bootstrap_median([10, 20, None]) == (20, 10, None)


def test_seconds_and_memory_are_sum_and_peak():
    lines = [
        {"seconds": {"generate": 1.5, "train": 0.5}, "memory_mb": 300.0},
        {"seconds": {"generate": 2.0}, "memory_mb": 500.0},
        {"seconds": {"generate": 1.0}, "memory_mb": 400.0},
    ]
    assert seconds(lines) == 5.0
    assert memory_mb(lines) == 500.0
