"""Two models on the same problems: the exact test, and the interval of the difference."""

from __future__ import annotations

import math

import numpy as np

from dare.evaluation.intervals import Z
from dare.evaluation.student import NOTHING, Array, Interval, student


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
