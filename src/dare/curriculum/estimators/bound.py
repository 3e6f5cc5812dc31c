"""The finite-sample bound of the paper's Proposition on clipped SNIS."""

from __future__ import annotations

import math

import numpy as np

from dare.curriculum.arrays import Array
from dare.errors import require


def snis_bound(
    rollouts: int,
    *,
    clip: float,
    delta: float = 0.05,
    min_mean_weight: float = 1.0,
    clip_bias: float = 0.0,
) -> float:
    """Error that clipped SNIS exceeds with probability at most `delta` (Proposition 1).

    2 eps / (b - eps) + bias / b,   eps = exp(clip) sqrt(log(4 / delta) / (2 K)), where K is
    `rollouts`, b is `min_mean_weight`, a lower bound on the mean expected weight, and `clip_bias`
    is the mean of E|rho - W| (see `clip_bias`). Infinite where eps >= b: the worst case says
    nothing there, which for c = 4 is any K below some thousands; use the ESS instead.
    """
    require(rollouts >= 1, "rollouts", rollouts, "needs at least one")
    require(clip >= 0, "clip", clip, "c must not be negative")
    require(0 < delta < 1, "delta", delta, "is a probability, in (0, 1)")
    require(min_mean_weight > 0, "min_mean_weight", min_mean_weight, "must be positive")
    require(clip_bias >= 0, "clip_bias", clip_bias, "must not be negative")
    epsilon = math.exp(clip) * math.sqrt(math.log(4 / delta) / (2 * rollouts))
    if epsilon >= min_mean_weight:
        return math.inf
    return 2 * epsilon / (min_mean_weight - epsilon) + clip_bias / min_mean_weight


def clip_bias(ratio: Array, probability: Array, clip: float) -> float:
    """E[(rho - e^c)+ + (e^-c - rho)+] over enumerated responses and their behaviour probability."""
    upper, lower = math.exp(clip), math.exp(-clip)
    outside = np.maximum(ratio - upper, 0) + np.maximum(lower - ratio, 0)
    return float(np.sum(probability * outside))
