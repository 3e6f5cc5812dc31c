"""From what was measured to the figures of the table: errors with intervals, per estimator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, compact, keyed_rng
from dare.study import cost
from dare.study.calibration import calibration, near_half
from dare.study.ess_sweep import sweep
from dare.study.estimators import ESTIMATORS

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % of Student's t with 1, 2, ... degrees of freedom."""
_DRAWS = 2000


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All figures of the runs (one a seed, as `EstimatorStudy.result` gives them)."""
    columns = _columns(runs)
    measured = runs[0]["points"][0]["estimates"]
    names = [name for name in ESTIMATORS if name in measured]
    names += [name for name in measured if name not in ESTIMATORS]
    estimators = {name: _of(name, runs, columns) for name in names}
    keys = ("mae", "mae_low", "mae_high", "mse", "by_step", "seen", "unseen")
    intrinsic = {key: estimators["current-fr"][key] for key in keys}
    return {
        "estimators": estimators,
        "intrinsic": {"rollouts": runs[0]["group"], **intrinsic},
        "truth_variance": _truth_variance(columns),
        "ess_sweep": _sweep(columns),
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
    low, high = interval(np.abs(predicted - truth), columns["prompt"], columns["seed"])
    return {
        "about": ESTIMATORS.get(name, "dare with other settings"),
        **errors(predicted, truth),
        "mae_low": low,
        "mae_high": high,
        "by_step": {
            str(step): errors(predicted[here], truth[here])
            for step in np.unique(columns["step"]).tolist()
            for here in [columns["step"] == step]
        },
        "seen": errors(predicted[columns["seen"]], truth[columns["seen"]]),
        "unseen": errors(predicted[~columns["seen"]], truth[~columns["seen"]]),
        "near_half": near_half(predicted, truth, trials),
        "calibration": calibration(predicted, truth, trials),
        "cost": cost.total([run["cost"][name] for run in runs]),
    }


def errors(predicted_Q: Array, truth_Q: Array) -> dict[str, Any]:
    """Mean absolute and mean squared error."""
    if not len(truth_Q):
        return {"mae": None, "mse": None}
    gap = predicted_Q - truth_Q
    return {"mae": float(np.abs(gap).mean()), "mse": float((gap**2).mean())}


def interval(error_N: Array, prompt_N: Array, seed_N: Array) -> tuple[float, float]:
    """95 % interval of the mean error.

    Over several seeds by Student's t of their means. Of one seed by drawing its prompts again with
    all of their points (bootstrap): this says nothing about other runs.
    """
    seeds, of_seed = compact(seed_N)
    if len(seeds) > 1:
        means = np.bincount(of_seed, weights=error_N) / np.bincount(of_seed)
        free = len(means) - 1
        quantile = _T[free - 1] if free <= len(_T) else 1.96 + 2.6 / free
        half = quantile * float(means.std(ddof=1)) / math.sqrt(len(means))
        return float(means.mean()) - half, float(means.mean()) + half
    prompts, of_prompt = compact(prompt_N)
    total, count = np.bincount(of_prompt, weights=error_N), np.bincount(of_prompt)
    rng = keyed_rng(0, len(prompts), "estimator interval")
    shares = np.full(len(prompts), 1.0 / len(prompts))
    drawn = rng.multinomial(len(prompts), shares, size=_DRAWS)
    low, high = np.quantile((drawn @ total) / (drawn @ count), [0.025, 0.975])
    return float(low), float(high)


def _truth_variance(columns: dict[str, Array]) -> float:
    """Mean sampling variance of the truth itself: part of every MSE, and to be taken off it."""
    truth, trials = columns["truth"], columns["trials"]
    return float((truth * (1.0 - truth) / np.maximum(trials - 1.0, 1.0)).mean())


def _sweep(columns: dict[str, Array]) -> list[dict[str, Any]] | None:
    if "sweep ess" not in columns:
        return None
    ess, aligned, prior = (columns[f"sweep {name}"] for name in ("ess", "aligned", "prior"))
    return sweep(ess, aligned, prior, columns["truth"])
