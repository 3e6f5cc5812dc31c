"""The figures of one run and of several: definitions of the paper's appendix J.

A curve is a list of evaluations: `step`, `generated_tokens_total` and `accuracy`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.evaluation.intervals import NOTHING, Interval

Curve = Sequence[dict[str, Any]]


def reached(curve: Curve, target: float) -> dict[str, Any] | None:
    """The first evaluation with accuracy >= target, or None.

    Its step is S_m(tau) = min{s in [0, H]: acc_m(s) >= tau} (appendix J, first equation), its
    tokens the same on the other axis. Runs of equal tokens have unequal steps: H is the run's own
    end. The target is reached or it is not, there is no slack.
    """
    return next((line for line in curve if line["accuracy"] >= target), None)


def speed_up(base: float | None, own: float | None) -> float | None:
    """sp_m(tau) = S_base(tau) / S_m(tau) (appendix J, first equation), in steps, tokens or seconds.

    Not defined where the base never reaches the target, or where either begins above it. A
    method that never reaches it has speed-up 0: S_m is beyond every horizon.
    """
    if not base or own == 0:
        return None
    return 0.0 if own is None else base / own


def at_places(place_E: Array, value_ExP: Array, wanted_N: Array) -> Array:
    """Straight lines between evaluations, flat before the first and after the last; N x P."""
    right = np.clip(np.searchsorted(place_E, wanted_N, side="right"), 1, max(len(place_E) - 1, 1))
    left = right - 1
    right = np.minimum(right, len(place_E) - 1)
    width = place_E[right] - place_E[left]
    gone = np.divide(
        wanted_N - place_E[left], width, out=np.zeros(len(wanted_N)), where=width > 0
    ).clip(0.0, 1.0)[:, None]
    mixed: Array = (1.0 - gone) * value_ExP[left] + gone * value_ExP[right]
    return mixed


def auc(place_E: Array, value_ExP: Array, horizon: float) -> Array:
    """Normalised area under each column, (1/H) times the integral of acc_m from 0 to H.

    Appendix J, second equation: the trapezoidal rule between evaluations, which makes it the mean
    accuracy over training. The paper integrates over steps; over generated tokens methods that
    spend different amounts a step stay comparable. Before the first and after the last evaluation
    the curve is flat.
    """
    inside = place_E[(place_E > 0) & (place_E < horizon)]
    knots = np.concatenate([[0.0], inside, [horizon]])
    area: Array = np.trapezoid(at_places(place_E, value_ExP, knots), knots, axis=0) / horizon
    return area


def median_reached(values: Sequence[float | None]) -> Interval:
    """Median over seeds of S_tau, where None is beyond the horizon; undefined if half are.

    The 95 % interval holds for any distribution (the sign test turned round): from the k-th lowest
    to the k-th highest, for the largest k with P(Binomial(S, 1/2) < k) <= 0.025. Below six seeds
    there is no such k and no interval. An upper end of None lies beyond the horizon.
    """
    ordered = sorted(math.inf if value is None else float(value) for value in values)
    count = len(ordered)
    if not ordered:
        return NOTHING
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    if not math.isfinite(middle):
        return NOTHING
    below, place = 0, 0
    while below + math.comb(count, place) <= 0.025 * 2**count:
        below, place = below + math.comb(count, place), place + 1
    if not place:
        return Interval(middle, None, None)
    high = ordered[count - place]
    return Interval(middle, ordered[place - 1], high if math.isfinite(high) else None)


def seconds(metrics: Sequence[dict[str, Any]]) -> float | None:
    """Seconds of all phases of all steps, evaluation not counted; None where a step has none."""
    spent = [line.get("seconds") for line in metrics]
    return None if not all(spent) else float(sum(sum(one.values()) for one in spent if one))


def seconds_at(metrics: Sequence[dict[str, Any]], curve: Curve) -> list[float] | None:
    """Seconds of training before every evaluation, None where they cannot be told."""
    found = [seconds(until(metrics, line)) for line in curve]
    return None if None in found or not metrics else [one for one in found if one is not None]


def until(metrics: Sequence[dict[str, Any]], hit: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps before an evaluation: what it took to get there. Empty where it is None."""
    end = 0 if hit is None else hit["step"]
    return [line for line in metrics if line["step"] < end]


def memory_mb(metrics: Sequence[dict[str, Any]]) -> float | None:
    """Peak memory of the run (appendix G): of the GPU where one was used, else of the process."""
    return max((float(line["memory_mb"]) for line in metrics if "memory_mb" in line), default=None)


def mean_of(metrics: Sequence[dict[str, Any]], key: str) -> float | None:
    """Mean over the steps that have it, None where none has."""
    held = [float(line[key]) for line in metrics if key in line]
    return sum(held) / len(held) if held else None
