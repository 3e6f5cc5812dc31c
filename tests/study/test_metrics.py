"""Every figure of a comparison against an example that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from dare.study import metrics
from dare.study.metrics import (
    at_places,
    mean_of,
    median_reached,
    memory_mb,
    reached,
    seconds,
    seconds_at,
    speed_up,
)


def curve(*points: tuple[int, int, float]) -> list[dict[str, Any]]:
    names = ("step", "generated_tokens_total", "accuracy")
    return [dict(zip(names, point, strict=True)) for point in points]


def auc(lines: list[dict[str, Any]], horizon: float, axis: str = "generated_tokens_total") -> float:
    place = np.array([line[axis] for line in lines], float)
    value = np.array([[line["accuracy"]] for line in lines], float)
    return float(metrics.auc(place, value, horizon)[0])


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


def test_between_evaluations_every_problem_follows_a_straight_line():
    rng = np.random.default_rng(0)
    place, value = np.array([0.0, 3.0, 10.0]), rng.random((3, 4))
    wanted = np.array([-1.0, 0.0, 2.0, 3.0, 9.9, 10.0, 12.0])
    found = at_places(place, value, wanted)
    for column in range(4):
        assert found[:, column] == pytest.approx(np.interp(wanted, place, value[:, column]))
    assert at_places(place[:1], value[:1], wanted) == pytest.approx(np.tile(value[0], (7, 1)))


def test_a_median_counts_what_is_never_reached_as_latest():
    assert median_reached([20, 30, 25]).mean == 25
    assert median_reached([20, 30]).mean == 25
    assert median_reached([20, None, 30]).mean == 30
    assert median_reached([20, None]) == (None, None, None)
    assert median_reached([]) == (None, None, None)


def test_a_median_has_an_interval_from_six_seeds_on():
    assert median_reached([1, 2, 3, 4, 5]) == (3, None, None)  # lowest to highest: 93.75 %
    assert median_reached([6, 5, 4, 3, 2, 1]) == (3.5, 1, 6)
    assert median_reached([1, 2, 3, 4, 5, None]) == (3.5, 1, None)
    for count in (9, 20, 40):
        _, low, high = median_reached(list(range(1, count + 1)))
        place = int(stats.binom.ppf(0.025, count, 0.5))  # the lowest with more than 2.5 % below
        assert (low, high) == (place, count + 1 - place)


def test_the_interval_of_a_median_covers_it():
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(500):
        _, low, high = median_reached(rng.exponential(size=9).tolist())
        hits.append(low <= np.log(2) <= high)
    assert np.mean(hits) > 0.93  # exactly 0.961


def test_seconds_and_memory_are_sum_and_peak():
    lines = [
        {"seconds": {"generate": 1.5, "train": 0.5}, "memory_mb": 300.0},
        {"seconds": {"generate": 2.0}, "memory_mb": 500.0},
        {"seconds": {"generate": 1.0}, "memory_mb": 400.0},
    ]
    assert seconds(lines) == 5.0
    assert memory_mb(lines) == 500.0


def test_what_a_run_does_not_tell_is_absent_and_not_zero():
    told = [{"step": s, "seconds": {"train": 2.0}, "varied_groups": 0.5} for s in range(4)]
    evaluations = curve((0, 0, 0.1), (2, 10, 0.2), (4, 20, 0.3))
    assert seconds_at(told, evaluations) == [0.0, 4.0, 8.0]
    assert mean_of(told, "varied_groups") == 0.5
    assert memory_mb(told) is None
    assert mean_of(told, "reward") is None
    silent = [*told[:3], {"step": 3}]
    assert seconds(silent) is None
    assert seconds_at(silent, evaluations) is None
