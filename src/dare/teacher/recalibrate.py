"""Is a predicted rate off by a temperature and a bias? The best ones, and what they would gain."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dare.curriculum.arrays import Array
from dare.evaluation.calibration import calibration


class Line(NamedTuple):
    """a and b of sigmoid(a logit(p) + b), 1 and 0 where calibrated, and their standard errors."""

    slope: float
    shift: float
    slope_error: float
    shift_error: float


def best_line(predicted: Array, rate: Array) -> Line | None:
    """The pair with the least cross-entropy, by Newton's method.

    None where the predictions are all alike or the rates separate perfectly, so that there is no
    such pair. The errors take the rates as they scatter (sandwich), not as single coin flips.
    """
    x = _logit(predicted)
    if np.std(x) < 1e-9:
        return None
    columns = np.stack([x, np.ones_like(x)])
    found = np.array([1.0, 0.0])
    for _ in range(50):
        p = _sigmoid(found @ columns)
        gradient = columns @ (p - rate)
        curvature = (columns * (p * (1 - p))) @ columns.T + 1e-9 * np.eye(2)
        move = np.linalg.solve(curvature, gradient)
        found = found - move * min(1.0, 2.0 / float(np.abs(move).max() + 1e-12))
        if float(np.abs(move).max()) < 1e-9:
            half = np.linalg.solve(curvature, columns * (p - rate))
            errors = np.sqrt((half * half).sum(axis=1))
            return Line(*(float(value) for value in (*found, *errors)))
    return None


def recalibrated(predicted: Array, rate: Array) -> Array:
    """The predictions after the best slope and shift of the other half of the rows."""
    result = predicted.copy()
    halves = [np.arange(start, len(rate), 2) for start in (0, 1)]
    for mine, other in (halves, halves[::-1]):
        line = best_line(predicted[other], rate[other])
        if line is not None:
            result[mine] = _sigmoid(line.slope * _logit(predicted[mine]) + line.shift)
    return result


def expected_error(predicted: Array, rate: Array, trials: Array) -> float:
    """Mean gap between predicted and observed rate over bins, weighted by their prompts (ECE)."""
    lines = calibration(predicted, rate, trials)
    total = sum(line["prompts"] for line in lines)
    gaps = (line["prompts"] * abs(line["predicted"] - line["realised"]) for line in lines)
    return float(sum(gaps) / total)


def _logit(p: Array) -> Array:
    safe = np.clip(p, 1e-9, 1 - 1e-9)
    found: Array = np.log(safe) - np.log1p(-safe)
    return found


def _sigmoid(x: Array) -> Array:
    found: Array = 0.5 * (1 + np.tanh(0.5 * x))
    return found
