"""The figures of one run and of several: definitions of the paper's appendix J, with intervals.

A curve is a list of evaluations: `step`, `generated_tokens_total` and `accuracy`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dare.evaluation.intervals import Interval, bootstrap

__all__ = [
    "Curve",
    "Interval",
    "auc",
    "bootstrap",
    "bootstrap_median",
    "median_reached",
    "memory_mb",
    "reached",
    "seconds",
    "speed_up",
    "until",
]

Curve = Sequence[dict[str, Any]]


def reached(curve: Curve, target: float) -> dict[str, Any] | None:
    """The first evaluation with accuracy >= target, or None.

    Its step is S_m(tau) = min{s in [0, H]: acc_m(s) >= tau} (appendix J, first equation), its
    tokens the same on the other axis. Runs of equal tokens have unequal steps: H is the run's own
    end. The target is reached or it is not, there is no slack.
    """
    return next((line for line in curve if line["accuracy"] >= target), None)


def speed_up(base: float | None, own: float | None) -> float | None:
    """sp_m(tau) = S_base(tau) / S_m(tau) (appendix J, first equation), in steps or tokens.

    Not defined where the base never reaches the target, or where a method begins above it. A
    method that never reaches it has speed-up 0: S_m is beyond every horizon.
    """
    if base is None or own == 0:
        return None
    return 0.0 if own is None else base / own


def auc(curve: Curve, horizon: float, axis: str = "generated_tokens_total") -> float:
    """Normalised area under the accuracy curve, (1/H) times the integral of acc_m from 0 to H.

    Appendix J, second equation: the trapezoidal rule between evaluations, which makes it the mean
    accuracy over training. The paper integrates over steps; over generated tokens methods that
    spend different amounts a step stay comparable. Before the first and after the last evaluation
    the curve is flat.
    """
    place = np.array([line[axis] for line in curve], dtype=float)
    value = np.array([line["accuracy"] for line in curve], dtype=float)
    inside = place[(place > 0) & (place < horizon)]
    knots = np.concatenate([[0.0], inside, [horizon]])
    return float(np.trapezoid(np.interp(knots, place, value), knots) / horizon)


def median_reached(values: Sequence[float | None]) -> float | None:
    """Median over seeds of S_tau, where None is beyond the horizon; None if half are."""
    ordered = sorted(math.inf if value is None else value for value in values)
    if not ordered:
        return None
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return middle if math.isfinite(middle) else None


def bootstrap_median(values: Sequence[float | None], draws: int = 2000) -> Interval:
    """`median_reached` with the interval of the medians of seeds drawn again.

    An upper end of None lies beyond the horizon.
    """
    if not values:
        return Interval(None, None, None)
    array = np.array([math.inf if value is None else value for value in values])
    drawn = np.sort(np.random.default_rng(0).choice(array, size=(draws, len(array))), axis=1)
    size = len(array)
    medians = np.sort((drawn[:, (size - 1) // 2] + drawn[:, size // 2]) / 2)
    ends = medians[int(0.025 * draws)], medians[math.ceil(0.975 * draws) - 1]
    low, high = (float(end) if math.isfinite(end) else None for end in ends)
    return Interval(median_reached(values), low, high)


def seconds(metrics: Sequence[dict[str, Any]]) -> float:
    """Wall-clock seconds of all phases of all steps; evaluation is not counted."""
    return float(sum(sum(line["seconds"].values()) for line in metrics))


def until(metrics: Sequence[dict[str, Any]], hit: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps before an evaluation: what it took to get there. Empty where it is None."""
    end = 0 if hit is None else hit["step"]
    return [line for line in metrics if line["step"] < end]


def memory_mb(metrics: Sequence[dict[str, Any]]) -> float:
    """Peak memory of the run (appendix G): of the GPU where one was used, else of the process."""
    return float(max(line.get("memory_mb", 0.0) for line in metrics))
