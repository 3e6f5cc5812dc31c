"""The figures of the estimator study against loops, scipy, and cases with a known answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from dare.curriculum import Outcome
from dare.evaluation.calibration import calibration, near_half
from dare.evaluation.intervals import effective_trials, wilson
from dare.study.estimator_figures import (
    TAUS,
    best_constant,
    errors,
    interval,
    summarise,
    sweep,
    total_cost,
)
from dare.study.estimator_runs import markdown
from dare.study.estimators import ESTIMATORS
from dare.study.watchers import MeanOfSeen


@pytest.mark.parametrize(("failures", "trials"), [(0, 5), (3, 8), (8, 8), (57, 200), (1, 1)])
def test_wilson_is_scipys(failures: int, trials: int) -> None:
    theirs = stats.binomtest(failures, trials).proportion_ci(0.95, method="wilson")
    assert wilson(failures / trials, trials) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_effective_trials_lie_between_prompts_and_rollouts() -> None:
    rng = np.random.default_rng(0)
    trials = np.full(400, 64.0)
    alike = rng.binomial(64, 0.4, 400) / 64
    assert effective_trials(alike, float(trials.sum())) == pytest.approx(400 * 64, rel=0.15)
    apart = (rng.random(400) < 0.4).astype(float)  # each prompt always or never fails
    assert effective_trials(apart, float(trials.sum())) == pytest.approx(400, rel=0.01)
    assert effective_trials(np.ones(5)) == 5
    assert effective_trials(np.array([0.3])) == 1


def test_intervals_of_bins_cover_the_mean() -> None:
    """Prompts of one bin with their own rates: about 95 % of intervals hold the bin's rate."""
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(400):
        rates = rng.beta(2.0, 3.0, 40)
        truth = rng.binomial(16, rates) / 16
        line = calibration(np.full(40, 0.4), truth, np.full(40, 16.0))[0]
        hits.append(line["low"] <= 0.4 <= line["high"])
    assert 0.92 <= np.mean(hits) <= 0.98


def test_calibration_and_near_half_against_loops() -> None:
    rng = np.random.default_rng(2)
    predicted = np.concatenate([rng.random(300), [0.0, 0.4, 0.5, 0.6, 1.0]])
    truth = rng.random(305)
    trials = np.full(305, 64.0)
    lines = {line["from"]: line for line in calibration(predicted, truth, trials)}
    for index in range(10):
        inside = [
            place
            for place, value in enumerate(predicted)
            if index / 10 <= value and (value < (index + 1) / 10 or (index == 9 and value == 1.0))
        ]
        line = lines[index / 10]
        assert line["prompts"] == len(inside)
        assert line["predicted"] == pytest.approx(sum(predicted[inside]) / len(inside))
        assert line["realised"] == pytest.approx(sum(truth[inside]) / len(inside))
    near = near_half(predicted, truth, trials)
    found = [t for p, t in zip(predicted, truth, strict=True) if 0.4 <= p <= 0.6]
    assert near["prompts"] == len(found)
    assert near["realised"] == pytest.approx(sum(found) / len(found))
    assert near["distance"] == pytest.approx(sum(abs(t - 0.5) for t in found) / len(found))
    assert near["medium"] == sum(0.2 <= t <= 0.8 for t in found) / len(found)
    nobody = near_half(np.zeros(3), truth[:3], trials[:3])
    assert nobody["prompts"] == 0
    assert nobody["realised"] is None


def test_the_sweep_against_a_loop() -> None:
    rng = np.random.default_rng(3)
    ess = np.where(rng.random(200) < 0.3, 0.0, rng.uniform(1, 8.5, 200))
    aligned, prior, truth = rng.random((3, 200))
    lines = sweep(ess, aligned, prior, truth)
    assert [line["tau"] for line in lines] == list(TAUS) == list(range(1, 9))
    for line in lines:
        overall, kept, held = [], [], []
        for e, a, p, t in zip(ess, aligned, prior, truth, strict=True):
            accepted = e >= line["tau"]
            error = abs((a if accepted else p) - t)
            overall.append(error)
            kept += [error] if accepted else []
            held += [error] if e > 0 else []
        assert line["coverage"] == len(kept) / 200
        assert line["held_coverage"] == pytest.approx(len(kept) / len(held))
        assert line["mae"] == pytest.approx(sum(overall) / 200)
        assert line["mae_held"] == pytest.approx(sum(held) / len(held))
        if kept:
            assert line["mae_accepted"] == pytest.approx(sum(kept) / len(kept))
        else:
            assert line["mae_accepted"] is None
    assert [line["coverage"] for line in lines] == sorted(
        (line["coverage"] for line in lines), reverse=True
    )


def invented(seed: int, prompts: int = 30, at: tuple[int, ...] = (5, 10)) -> dict[str, Any]:
    """A result as a run leaves it, of random numbers; one truth is missing."""
    rng = np.random.default_rng(seed)
    points = []
    for step in at:
        trials = np.full(prompts, 64)
        trials[3] = 0
        names = ("ess", "aligned", "prior")
        sweep_columns = {name: rng.random(prompts).tolist() for name in names}
        sweep_columns["ess"] = (8 * rng.random(prompts)).tolist()
        points.append(
            {
                "step": step,
                "prompt": [f"{row:04d}" for row in range(prompts)],
                "seen": (np.arange(prompts) % 2 == 0).tolist(),
                "truth": rng.random(prompts).tolist(),
                "trials": trials.tolist(),
                "truth_tokens": 7,
                "estimates": {name: rng.random(prompts).tolist() for name in ESTIMATORS},
                "sweep": sweep_columns,
            }
        )
    cost = {"generated": 10, "scored": 20, "seconds": 0.5, "estimates": 5, "once": 10}
    costs = {name: dict(cost) for name in ESTIMATORS}
    return {"seed": seed, "group": 8, "points": points, "cost": costs}


def test_the_table_against_loops() -> None:
    runs = [invented(1), invented(2), invented(3)]
    figures = summarise(runs)
    assert set(figures["estimators"]) == set(ESTIMATORS)
    for name, line in figures["estimators"].items():
        gaps: dict[Any, list[float]] = {}
        for run in runs:
            for point in run["points"]:
                for row, truth in enumerate(point["truth"]):
                    if point["trials"][row] == 0:
                        continue
                    gap = point["estimates"][name][row] - truth
                    side = "seen" if point["seen"][row] else "unseen"
                    for key in ("all", side, str(point["step"]), run["seed"]):
                        gaps.setdefault(key, []).append(gap)
        for found, key in (
            (line, "all"),
            (line["seen"], "seen"),
            (line["unseen"], "unseen"),
            (line["by_step"]["5"], "5"),
            (line["by_step"]["10"], "10"),
        ):
            assert found["mae"] == pytest.approx(sum(map(abs, gaps[key])) / len(gaps[key]))
            assert found["mse"] == pytest.approx(sum(g * g for g in gaps[key]) / len(gaps[key]))
        means = [float(np.abs(gaps[run["seed"]]).mean()) for run in runs]
        span = stats.t.interval(0.95, 2, np.mean(means), stats.sem(means))
        assert (line["mae_low"], line["mae_high"]) == pytest.approx(span)
        means = [float(np.square(gaps[run["seed"]]).mean()) for run in runs]
        span = stats.t.interval(0.95, 2, np.mean(means), stats.sem(means))
        assert (line["mse_low"], line["mse_high"]) == pytest.approx(span)
        assert [one["mse"] for one in line["by_seed"].values()] == pytest.approx(means)
        assert line["cost"]["tokens_per_estimate"] == (3 * 30 - 3 * 10) / 15
    assert figures["intrinsic"]["mae"] == figures["estimators"]["current-fr"]["mae"]
    assert figures["intrinsic"]["rollouts"] == 8
    # 0.5 is a constant: the best one is nowhere worse.
    for part in (figures["constant"], figures["constant"]["seen"], figures["constant"]["unseen"]):
        assert part["mse"] <= 0.13


def test_the_interval_of_one_seed_takes_whole_prompts() -> None:
    rng = np.random.default_rng(5)
    per_prompt = rng.random(200)
    error = np.concatenate([per_prompt] * 3)  # three points that repeat each other
    names = np.array([str(row) for row in range(200)] * 3)
    theirs = stats.t.interval(0.95, 199, per_prompt.mean(), stats.sem(per_prompt))
    assert interval(error, names, np.zeros(600))[1:] == pytest.approx(theirs)
    assert interval(error[:1], names[:1], np.zeros(1))[1:] == (None, None)


@pytest.mark.parametrize("seeds", [2, 5, 11, 20])
def test_the_interval_over_seeds_is_students(seeds: int) -> None:
    means = np.random.default_rng(6).random(seeds)
    found = interval(np.repeat(means, 4), np.arange(4 * seeds), np.repeat(np.arange(seeds), 4))
    theirs = stats.t.interval(0.95, seeds - 1, means.mean(), stats.sem(means))
    assert found[1:] == pytest.approx(theirs)


def test_no_constant_is_better_than_the_best() -> None:
    rng = np.random.default_rng(7)
    truth, point = rng.beta(0.4, 0.8, 120), np.repeat([0, 1, 2], 40)
    found = best_constant(truth, point)
    tried = np.linspace(0, 1, 1001)
    least = [
        np.mean(
            [min(np.mean(np.abs(truth[point == p] - c) ** power) for c in tried) for p in range(3)]
        )
        for power in (1, 2)
    ]
    assert (found["mae"], found["mse"]) == pytest.approx(least, abs=1e-4)
    assert found["mae"] <= least[0] + 1e-12
    assert found["mse"] <= least[1] + 1e-12
    assert best_constant(truth[:0], point[:0]) == {"mae": None, "mse": None}


def test_the_mean_of_seen_is_that_of_the_groups() -> None:
    mean = MeanOfSeen(5)
    assert mean.difficulty().tolist() == [0.5] * 5
    mean.observe(Outcome(0, np.array([0, 1]), np.array([8, 4]), np.array([2.0, 4.0])))
    mean.observe(Outcome(1, np.array([0, 3]), np.array([8, 0]), np.array([8.0, 0.0])))
    assert mean.difficulty() == pytest.approx(np.full(5, (0.25 + 1.0 + 1.0) / 3))
    other = MeanOfSeen(5)
    other.load_state_dict(mean.state_dict())
    for one in (mean, other):
        one.observe(Outcome(2, np.array([2]), np.array([4]), np.array([0.0])))
    assert mean.difficulty().tolist() == other.difficulty().tolist()


def test_nothing_to_measure_is_no_error() -> None:
    assert errors(np.empty(0), np.empty(0)) == {"mae": None, "mse": None}
    assert total_cost([])["tokens_per_estimate"] == 0.0


def test_the_page_has_every_table_in_full() -> None:
    figures = {
        "model": "pocket",
        "preset": "dare",
        "seeds": [1],
        "at": [5, 10],
        "prompts": 30,
        "rollouts": 64,
        **summarise([invented(1)]),
    }
    page = markdown(figures)
    assert page.count("\n## ") == 5
    for name in ESTIMATORS:
        assert page.count(f"| {name}") >= 3
    assert page.count("| best constant") == 1
    errors_table = page.split("\n## ")[1]
    assert "seen MAE | MSE | unseen MAE | MSE" in errors_table
    assert "| mean-of-seen |" in errors_table
    for line in page.splitlines():
        if line.startswith("| ---"):
            width = line.count("|")
        elif line.startswith("|") and "estimator" not in line and "ESS" not in line:
            assert line.count("|") == width
