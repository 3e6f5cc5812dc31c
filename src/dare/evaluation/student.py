"""Student's t: 95 % intervals of means over seeds, and over seeds and problems together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


class Interval(NamedTuple):
    """A mean and its 95 % interval; None where it is not defined."""

    mean: float | None
    low: float | None
    high: float | None


NOTHING = Interval(None, None, None)


def t_inside(bound: float, free: float) -> float:
    """P(|T| <= bound) with so many degrees of freedom (at least 1, they need not be whole).

    With bound = sqrt(free) tan(a) it is the integral of cos^(free - 1) from 0 to a, over the same
    one to pi / 2.
    """
    angle = math.atan(bound / math.sqrt(free))
    area = angle / 2 * float(_WEIGHTS @ np.cos(angle / 2 * (_NODES + 1.0)) ** (free - 1.0))
    scale = math.exp(math.lgamma(free / 2 + 0.5) - math.lgamma(free / 2))
    return 2.0 / math.sqrt(math.pi) * scale * area


@lru_cache(maxsize=4096)
def t_quantile(free: float, level: float = 0.95) -> float:
    """What |T| stays below with this probability: 12.7 with 1 degree of freedom, 1.96 with many."""
    low, high = 0.0, 1.0
    while t_inside(high, free) < level:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if t_inside(middle, free) < level else (low, middle)
    return (low + high) / 2.0


def student(values: Sequence[float | None]) -> Interval:
    """Mean over seeds +- t_{S - 1} s / sqrt(S). None anywhere leaves it undefined.

    One seed has a mean and no interval.
    """
    if not values or any(value is None for value in values):
        return NOTHING
    array = np.asarray(values, dtype=float)
    mean, count = float(array.mean()), len(array)
    if count == 1:
        return Interval(mean, None, None)
    half = t_quantile(count - 1) * float(array.std(ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


def two_way(values_SxP: Array) -> Interval:
    """Mean over seeds and problems, where other seeds AND other problems could have been taken.

    Every seed has met the same problems. x_sp = m + a_s + b_p + e_sp, so the mean has the variance
    V = var(a) / S + var(b) / P + var(e) / (S P), estimated without bias by the mean squares of
    seeds, of problems and of what is left (analysis of variance):

        V = (MS_S + MS_P - MS_E) / (S P),  at least max(MS_S, MS_P) / (S P)

    MS_S = P sum_s (x_s. - m)^2 / (S - 1), MS_P = S sum_p (x_.p - m)^2 / (P - 1),
    MS_E = sum (x_sp - x_s. - x_.p + m)^2 / ((S - 1) (P - 1)). The bound holds where a component
    comes out below 0. Degrees of freedom by Satterthwaite: V^2 over the sum of each square's
    share^2 / its own degrees. Never narrower than over the seeds alone: with two or three of them
    these degrees are guessed too high where seeds differ by luck less than they should.
    """
    seeds, problems = values_SxP.shape
    mean = float(values_SxP.mean())
    of_seed, of_problem = values_SxP.mean(axis=1), values_SxP.mean(axis=0)
    rest = values_SxP - of_seed[:, None] - of_problem[None, :] + mean
    free = np.array([seeds - 1.0, problems - 1.0, (seeds - 1.0) * (problems - 1.0)])
    sums = [
        problems * ((of_seed - mean) ** 2).sum(),
        seeds * ((of_problem - mean) ** 2).sum(),
        (rest**2).sum(),
    ]
    square = np.array(sums) / free
    total = max(square[0] + square[1] - square[2], square[0], square[1])
    if total <= 0.0:
        return Interval(mean, mean, mean)
    worth = max(total**2 / float((square**2 / free).sum()), 1.0)
    half = t_quantile(round(worth, 3)) * math.sqrt(total / (seeds * problems))
    alone = t_quantile(seeds - 1) * math.sqrt(square[0] / (seeds * problems))
    half = max(half, alone)
    return Interval(mean, mean - half, mean + half)
