"""95 % intervals of means and rates over seeds and problems, paired tests, and pass@k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dare.errors import require

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


Z = 1.959963984540054
"""Two-sided 95 % of a normal distribution."""


def wilson(rate: float, trials: float, z: float = Z) -> tuple[float, float]:
    """Wilson score interval of a rate seen in so many trials (which need not be whole)."""
    if trials <= 0:
        return 0.0, 1.0
    scale = 1.0 + z * z / trials
    centre = (rate + z * z / (2.0 * trials)) / scale
    half = z / scale * math.sqrt(rate * (1.0 - rate) / trials + z * z / (4.0 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def effective_trials(rate_P: Array, most: float = math.inf) -> float:
    """Independent trials that the mean of these problems' rates is worth.

    Responses to one problem are alike, so P problems with R responses each say less than P R
    independent ones. From the spread between the problems: p (1 - p) / Var(mean), at least one
    trial a problem and at most all of them. Problems without any spread tell nothing of it: one
    each.
    """
    count = len(rate_P)
    if count < 2:
        return float(count)
    mean = float(np.mean(rate_P))
    variance = float(np.var(rate_P, ddof=1)) / count
    worth = mean * (1.0 - mean) / variance if variance > 0 else 0.0
    return min(most, max(float(count), worth))


def mean_rate(rate_P: Array, most: float = math.inf) -> Interval:
    """The mean of rates in [0, 1] over problems, where other problems could have been taken.

    Wilson's interval for as many trials as they are worth, with Student's quantile, since that
    worth is estimated from P problems: near 0 and 1 it keeps what mean +- t s / sqrt(P) loses.
    Values that are no rates get the latter.
    """
    count = len(rate_P)
    if not count or float(rate_P.min()) < 0.0 or float(rate_P.max()) > 1.0:
        return student(rate_P.tolist())
    trials, mean = effective_trials(rate_P, most), float(rate_P.mean())
    # One response a problem, right or wrong: nothing is estimated but the rate.
    single = bool(np.all((rate_P == 0) | (rate_P == 1)))
    return Interval(mean, *wilson(mean, trials, Z if single else t_quantile(max(count - 1, 1))))


def sign_test(better: int, worse: int) -> float:
    """Exact two-sided p-value: as many problems on one side or more, if both were as likely.

    Of single right or wrong answers this is McNemar's exact test. Problems on which the two are
    equal say nothing of which is ahead and do not count.
    """
    total = better + worse
    tail = sum(math.comb(total, k) for k in range(min(better, worse) + 1))
    return min(1.0, float(2 * tail / 2**total))


def paired_difference(own_P: Array, base_P: Array) -> Interval:
    """Mean difference problem by problem and its interval, where others could have been taken.

    Single answers, right or wrong: half a problem is added to each of the four outcomes (Agresti
    and Min, 2005), which keeps the interval honest where the two differ on few problems or none.
    Otherwise Student's t over problems.
    """
    apart = own_P - base_P
    apart = apart[~np.isnan(apart)]
    if not len(apart):
        return NOTHING
    mean = float(apart.mean())
    if not np.isin(apart, (-1.0, 0.0, 1.0)).all():
        return student(apart.tolist())
    better, worse = float((apart > 0).sum()), float((apart < 0).sum())
    count, gap = len(apart) + 2.0, better - worse
    half = Z * math.sqrt(better + worse + 1.0 - gap * gap / count) / count
    return Interval(mean, gap / count - half, gap / count + half)


def pass_at_k(samples_P: Array, right_P: Array, most: int) -> Array:
    """pass@1 ... pass@most of each problem, [P, most]; NaN where it has fewer samples than k.

    With c of n samples right, 1 - C(n - c, k) / C(n, k): of all ways to take k of the n samples,
    those that take a right one. The quotient is the product over i < k of (n - c - i) / (n - i),
    whose factors are at most 1, so nothing overflows and no two large numbers are subtracted.
    """
    samples, right = np.asarray(samples_P), np.asarray(right_P)
    require(most >= 1, "k", most, "must be at least 1")
    require(
        samples.shape == right.shape and bool(np.all((right >= 0) & (right <= samples))),
        "right_P",
        right.tolist()[:8],
        "counts must lie between 0 and the number of samples",
    )
    place = np.arange(most)
    left = samples[:, None] - place
    wrong = np.clip(left - right[:, None], 0, None)
    factor = np.where(left > 0, wrong / np.maximum(left, 1), np.nan)
    return 1.0 - np.cumprod(factor, axis=1)
