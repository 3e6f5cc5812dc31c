"""95 % intervals of rates: Wilson's for single trials, and for problems with several each."""

from __future__ import annotations

import math

import numpy as np

from dare.evaluation.student import Array, Interval, student, t_quantile

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
