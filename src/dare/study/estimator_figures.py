"""From what was measured to the figures of the table: errors with intervals, per estimator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, compact
from dare.evaluation.calibration import calibration, near_half
from dare.evaluation.intervals import Interval, student, t_quantile
from dare.study.estimators import ESTIMATORS

TAUS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


def sweep(ess_Q: Array, aligned_Q: Array, prior_Q: Array, truth_Q: Array) -> list[dict[str, Any]]:
    """For each threshold the share accepted (ESS >= tau) and the error, overall and of those.

    Prompts that are not accepted fall back to the cold start, as in the paper. A prompt without
    rollouts has an ESS of 0 and is never accepted; `held_coverage` counts the others alone.
    """
    held = ess_Q > 0
    lines: list[dict[str, Any]] = []
    for tau in TAUS:
        accepted = held & (ess_Q >= tau)
        error = np.abs(np.where(accepted, aligned_Q, prior_Q) - truth_Q)
        lines.append(
            {
                "tau": float(tau),
                "coverage": _mean(accepted),
                "held_coverage": _mean(accepted[held]),
                "mae": _mean(error),
                "mae_held": _mean(error[held]),
                "mae_accepted": _mean(error[accepted]),
            }
        )
    return lines


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All figures of the runs (one a seed, as `EstimatorStudy.result` gives them)."""
    columns = _columns(runs)
    measured = runs[0]["points"][0]["estimates"]
    names = [name for name in ESTIMATORS if name in measured]
    names += [name for name in measured if name not in ESTIMATORS]
    estimators = {name: _of(name, runs, columns) for name in names}
    keys = ("mae", "mae_low", "mae_high", "mse", "mse_low", "mse_high", "by_step", "seen", "unseen")
    intrinsic = {key: estimators["current-fr"][key] for key in keys}
    found = None
    if "sweep ess" in columns:
        ess, aligned, prior = (columns[f"sweep {name}"] for name in ("ess", "aligned", "prior"))
        found = sweep(ess, aligned, prior, columns["truth"])
    return {
        "estimators": estimators,
        "constant": _constant(columns),
        "intrinsic": {"rollouts": runs[0]["group"], **intrinsic},
        "truth_variance": _truth_variance(columns),
        "ess_sweep": found,
        "seen": int(columns["seen"].sum()),
        "unseen": int((~columns["seen"]).sum()),
    }


def _columns(runs: Sequence[dict[str, Any]]) -> dict[str, Array]:
    """Every prompt at every point of every run as one row; those without a truth are left out."""
    points = [(run["seed"], point) for run in runs for point in run["points"]]

    def joined(values: Any) -> Array:
        return np.concatenate([np.asarray(values(seed, point)) for seed, point in points])

    columns = {
        "seed": joined(lambda seed, point: np.full(len(point["prompt"]), seed)),
        "step": joined(lambda seed, point: np.full(len(point["prompt"]), point["step"])),
        "prompt": joined(lambda seed, point: [f"{seed} {name}" for name in point["prompt"]]),
        "seen": joined(lambda _, point: np.array(point["seen"], bool)),
        "truth": joined(lambda _, point: np.array(point["truth"], float)),
        "trials": joined(lambda _, point: np.array(point["trials"], float)),
    }
    for name in points[0][1]["estimates"]:
        columns[f"of {name}"] = joined(lambda _, p, n=name: np.array(p["estimates"][n], float))
    for name in points[0][1]["sweep"] or {}:
        columns[f"sweep {name}"] = joined(lambda _, p, n=name: np.array(p["sweep"][n], float))
    known = columns["trials"] > 0
    return {name: column[known] for name, column in columns.items()}


def _of(name: str, runs: Sequence[dict[str, Any]], columns: dict[str, Array]) -> dict[str, Any]:
    predicted, truth, trials = columns[f"of {name}"], columns["truth"], columns["trials"]
    gap = predicted - truth
    absolute, squared = (
        interval(error, columns["prompt"], columns["seed"]) for error in (np.abs(gap), gap**2)
    )

    def of(here: Array) -> dict[str, Any]:
        return errors(predicted[here], truth[here])

    return {
        "about": ESTIMATORS.get(name, "dare with other settings"),
        "mae_low": absolute.low,
        "mae_high": absolute.high,
        "mse_low": squared.low,
        "mse_high": squared.high,
        **_parts(columns, of),
        "by_step": {step: of(here) for step, here in _each(columns, "step")},
        "by_seed": {seed: _parts(columns, of, here) for seed, here in _each(columns, "seed")},
        "near_half": near_half(predicted, truth, trials),
        "calibration": calibration(predicted, truth, trials),
        "cost": total_cost([run["cost"][name] for run in runs]),
    }


def _parts(
    columns: dict[str, Array], of: Callable[[Array], dict[str, Any]], here: Any = True
) -> dict[str, Any]:
    """Figures of all rows, or of those `here`; then of the prompts among them seen in training,
    and of the others."""
    seen = columns["seen"]
    return {**of((seen | True) & here), "seen": of(seen & here), "unseen": of(~seen & here)}


def errors(predicted_Q: Array, truth_Q: Array) -> dict[str, Any]:
    """Mean absolute and mean squared error."""
    if not len(truth_Q):
        return {"mae": None, "mse": None}
    gap = predicted_Q - truth_Q
    return {"mae": float(np.abs(gap).mean()), "mse": float((gap**2).mean())}


def interval(error_N: Array, prompt_N: Array, seed_N: Array) -> Interval:
    """The mean error and its 95 % interval by Student's t.

    Over several seeds from their means: every seed has its own run and its own choice of prompts,
    so both are taken in. Of one seed over its prompts, each with all of its points: this says
    nothing about other runs. There the mean is a ratio of sums over prompts, whose deviations are
    total_i - mean count_i in units of the mean count.
    """
    seeds, of_seed = compact(seed_N)
    if len(seeds) > 1:
        return student((np.bincount(of_seed, weights=error_N) / np.bincount(of_seed)).tolist())
    _, of_prompt = compact(prompt_N)
    total, count = np.bincount(of_prompt, weights=error_N), np.bincount(of_prompt)
    mean = float(error_N.mean())
    if len(total) < 2:
        return Interval(mean, None, None)
    away = (total - mean * count) / count.mean()
    half = t_quantile(len(total) - 1) * float(away.std(ddof=1)) / math.sqrt(len(total))
    return Interval(mean, mean - half, mean + half)


def _constant(columns: dict[str, Array]) -> dict[str, Any]:
    """Errors of the best constant, which may be another for every figure of the table."""
    truth = columns["truth"]
    point = columns["seed"] * (1 + int(columns["step"].max())) + columns["step"]

    def of(here: Array) -> dict[str, Any]:
        return best_constant(truth[here], point[here])

    return {
        "about": "best in hindsight for each figure and point: median for MAE, mean for MSE",
        **_parts(columns, of),
        "by_step": {step: of(here) for step, here in _each(columns, "step")},
    }


def _each(columns: dict[str, Array], name: str) -> list[tuple[str, Array]]:
    """Each value of a column, and where it stands."""
    return [(str(value), columns[name] == value) for value in np.unique(columns[name]).tolist()]


def _truth_variance(columns: dict[str, Array]) -> float:
    """Mean sampling variance of the truth itself: part of every MSE, and to be taken off it."""
    truth, trials = columns["truth"], columns["trials"]
    return float((truth * (1.0 - truth) / np.maximum(trials - 1.0, 1.0)).mean())


def total_cost(costs: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of several, and the tokens that one more estimate takes."""
    names = ("generated", "scored", "seconds", "estimates", "once")
    summed: dict[str, Any] = {name: sum(cost[name] for cost in costs) for name in names}
    summed["seconds"] = round(summed["seconds"], 4)
    tokens = summed["generated"] + summed["scored"] - summed["once"]
    summed["tokens_per_estimate"] = tokens / summed["estimates"] if summed["estimates"] else 0.0
    return summed


def best_constant(truth_Q: Array, point_Q: Array) -> dict[str, Any]:
    """Least error that any one number for all of these prompts can have, chosen in hindsight.

    A number for every point (a step of a run), since the policy changes. For the absolute error
    that is the median of the true rates, for the squared one their mean.
    """
    if not len(truth_Q):
        return {"mae": None, "mse": None}
    points, place = compact(point_Q)
    absolute, squared = np.empty(len(truth_Q)), np.empty(len(truth_Q))
    for point in range(len(points)):
        here = place == point
        absolute[here] = np.abs(truth_Q[here] - np.median(truth_Q[here]))
        squared[here] = (truth_Q[here] - truth_Q[here].mean()) ** 2
    return {"mae": float(absolute.mean()), "mse": float(squared.mean())}
