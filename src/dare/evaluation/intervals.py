"""95 % intervals: Wilson's for a rate of single trials, the bootstrap for means over problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

Z = 1.959963984540054
"""Two-sided 95 % of a normal distribution."""
DRAWS = 2000
_BLOCK = 1 << 22  # weights held at once


class Interval(NamedTuple):
    """A mean and its 95 % interval; None where it is not defined."""

    mean: float | None
    low: float | None
    high: float | None


def wilson(rate: float, trials: float, z: float = Z) -> tuple[float, float]:
    """Wilson score interval of a rate seen in so many trials (which need not be whole)."""
    if trials <= 0:
        return 0.0, 1.0
    scale = 1.0 + z * z / trials
    centre = (rate + z * z / (2.0 * trials)) / scale
    half = z / scale * math.sqrt(rate * (1.0 - rate) / trials + z * z / (4.0 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(values: Sequence[float | None], draws: int = DRAWS) -> Interval:
    """Mean and the 2.5 % and 97.5 % quantiles of means of values drawn again.

    The draws are always the same. None anywhere leaves the mean undefined.
    """
    if not values or any(value is None for value in values):
        return Interval(None, None, None)
    array = np.asarray(values, dtype=float)
    means = np.random.default_rng(0).choice(array, size=(draws, len(array))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(array.mean()), float(low), float(high))


def bootstrap_columns(values_PxM: Array, draws: int = DRAWS) -> tuple[Array, Array]:
    """Ends of the interval of each column's mean, with rows (problems) drawn again as a whole.

    NaN is a problem that a column does not have. All columns see the same draws, so that figures
    of one evaluation move together. A column without any value has NaN ends.
    """
    count, width = values_PxM.shape
    there = ~np.isnan(values_PxM)
    both = np.concatenate([np.where(there, values_PxM, 0.0), there], axis=1)
    rng = np.random.default_rng(0)
    parts = []
    step = max(1, _BLOCK // max(count, 1))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        weights = rng.multinomial(count, np.full(count, 1.0 / count), size=size)
        sums = weights @ both
        with np.errstate(invalid="ignore", divide="ignore"):
            parts.append(sums[:, :width] / sums[:, width:])
    means = np.concatenate(parts)
    low, high = np.full(width, np.nan), np.full(width, np.nan)
    for column in range(width):
        # A draw without any problem of a sparse column has no mean to count.
        drawn = means[:, column][~np.isnan(means[:, column])]
        if len(drawn):
            low[column], high[column] = np.quantile(drawn, [0.025, 0.975])
    return low, high
