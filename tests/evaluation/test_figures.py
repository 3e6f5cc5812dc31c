"""Figures and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dare.evaluation.figures import (
    Responses,
    basic,
    by_group,
    figures,
    interval,
    natural,
    pass_curve,
    summarise,
)
from dare.evaluation.intervals import wilson


def responses(scores: list[list[float | None]], size: int = 10) -> Responses:
    problem = [row for row, values in enumerate(scores) for _ in values]
    flat = [value for values in scores for value in values]
    return Responses.from_lists(problem, flat, [size] * len(flat), [False] * len(flat))


def test_accuracy_is_the_mean_over_problems() -> None:
    found = basic(responses([[1.0, 1.0, 0.0, 0.0], [1.0], [None, 0.0]]))
    assert found["accuracy"] == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert (found["responses"], found["unscored"]) == (7, 1)


def test_unscored_is_not_wrong_but_bounded() -> None:
    found = figures(responses([[1.0, None], [0.0, 0.0], [None, None]]))
    assert found["accuracy"] == 0.5
    assert found["accuracy_unscored_as_wrong"] == pytest.approx(0.5 / 3)
    assert (found["problems"], found["solved"], found["unscored"]) == (3, 1, 3)


def test_nothing_scored_is_no_accuracy() -> None:
    found = figures(responses([[None], [None]]))
    assert found["accuracy"] is found["low"] is found["high"] is None
    assert pass_curve(responses([[None]]))["k"] == []


def test_one_response_a_problem_has_wilsons_interval() -> None:
    found = figures(responses([[1.0]] * 30 + [[0.0]] * 10))
    assert found["interval"] == "wilson"
    assert (found["low"], found["high"]) == wilson(0.75, 40)


def test_several_count_as_what_their_problems_are_worth() -> None:
    rng = np.random.default_rng(1)
    rate = rng.random(400)
    scores = (rng.random((400, 8)) < rate[:, None]).astype(float)
    found = figures(responses(scores.tolist()))
    mean = scores.mean(axis=1)
    half = 1.96 * mean.std() / math.sqrt(400)
    assert found["interval"] == "wilson over problems"
    assert found["high"] - found["low"] == pytest.approx(2 * half, rel=0.1)
    # Had responses counted as independent, the interval would be far too narrow.
    low, high = wilson(float(mean.mean()), 3200)
    assert high - low < 0.6 * (found["high"] - found["low"])


def test_no_spread_is_not_certainty() -> None:
    low, high, kind = interval(np.zeros(30), np.full(30, 4))
    assert (low, kind) == (0.0, "wilson over problems")
    assert high == pytest.approx(wilson(0.0, 30)[1])


def test_scores_that_are_no_shares_have_students_interval() -> None:
    scores = np.random.default_rng(1).normal(0.0, 2.0, 25)
    *found, kind = interval(scores, np.full(25, 2))
    assert kind == "student"
    assert found == pytest.approx(stats.t.interval(0.95, 24, scores.mean(), stats.sem(scores)))


def test_pass_curve_counts_the_problems_it_rests_on() -> None:
    curve = pass_curve(responses([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0], [0.0, 0.0, None, 0.0]]))
    assert curve["k"] == [1, 2, 3, 4]
    assert curve["problems"] == [3, 3, 2, 1]
    assert curve["mean"][0] == pytest.approx((0.25 + 1.0 + 0.0) / 3, abs=1e-6)
    assert curve["mean"][3] == 1.0


def test_groups_are_sorted_as_people_sort() -> None:
    assert sorted(["10", "9", "easy", "1"], key=natural) == ["1", "9", "10", "easy"]
    found = by_group(responses([[1.0], [0.0], [1.0], [0.0]]), ["10", "9", None, "10"], basic)
    assert {name: one["accuracy"] for name, one in found.items()} == {"9": 0.0, "10": 0.5}


def test_labels_are_compared() -> None:
    base = {
        "benchmark": "b",
        "level": None,
        "subject": None,
        "tokens": [1, 1],
        "finish": ["stop"] * 2,
    }
    records = [
        {**base, "id": "a", "scores": [1.0, 0.0], "labels": [True, True]},
        {**base, "id": "b", "scores": [1.0, None], "labels": [False, True]},
    ]
    labels = summarise(records)["labels"]
    assert (labels["responses"], labels["right_here_only"], labels["right_by_labels_only"]) == (
        3,
        1,
        1,
    )
    assert [(one["id"], one["response"]) for one in labels["disagreements"]] == [("a", 1), ("b", 0)]
