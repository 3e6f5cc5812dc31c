"""How many rollouts a prediction is worth and where it leans, from the groups that came out.

A prediction p of a rate t that is worth s rollouts misses it by E (t - p)^2 = E t (1 - t) / s.
Groups have noise of their own: of n with k failures, E (k - n p)^2 = n E t (1 - t) plus n^2 times
that. Sums of both sides over groups, older ones discounted, give s, or the share of a claimed s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array

_MEMORY = 0.995  # discount of the sums per group
_CAUTION = 8.0  # in units of the sums, a handful of groups: until then a claim is believed
_LEAST = 0.02  # of a claim that is left, however wrong it was
_LEAN_CAUTION = 1.0  # 16 groups at a rate of 0.5: until then a lean is held toward 0
_MOST_LEAN = 1.0  # logits


def judge_forecasts(
    sums: MutableMapping[str, Any], failures_Q: Array, trials_Q: Array, rate_Q: Array
) -> None:
    """Add groups whose rates were forecast, by forecasts that say nothing of their own worth.

    With rates Beta distributed around p, E t (1 - t) = p (1 - p) s / (s + 1): squared errors
    exceed the binomial n p (1 - p) by n (n - 1) p (1 - p) / (s + 1).
    """
    binomial = trials_Q * rate_Q * (1.0 - rate_Q)
    excess = (failures_Q - trials_Q * rate_Q) ** 2 - binomial
    _add(sums, excess=excess, claimed=(trials_Q - 1.0) * binomial)


def judge_claims(
    sums: MutableMapping[str, Any],
    failures_Q: Array,
    trials_Q: Array,
    rate_Q: Array,
    claimed_Q: Array,
    variance_Q: Array,
) -> None:
    """Add groups of which something claimed to know the rate as well as so many rollouts would.

    `variance_Q` is the best that is known of t (1 - t); of a rate of 0 itself, every failure would
    be infinitely surprising.
    """
    excess = (failures_Q - trials_Q * rate_Q) ** 2 - trials_Q * variance_Q
    _add(sums, excess=excess, claimed=trials_Q**2 * variance_Q / claimed_Q)


def strength(sums: Mapping[str, Any], most: float) -> float:
    """Rollouts that a forecast is worth; 0 before any was judged."""
    excess, pairs = sums["excess"], sums["claimed"]
    if pairs <= 0:
        return 0.0
    return most if excess <= 0 else min(max(pairs / excess - 1.0, 0.0), most)


def honesty(sums: Mapping[str, Any]) -> float:
    """Share of the claimed rollouts that the claims were worth, at most 1."""
    excess, claimed = sums["excess"] + _CAUTION, sums["claimed"] + _CAUTION
    return 1.0 if excess <= claimed else max(claimed / excess, _LEAST)


def judge_lean(
    sums: MutableMapping[str, Any], failures_Q: Array, trials_Q: Array, rate_Q: Array
) -> None:
    """Add groups to the regression of what came out, less what was said, on one shift in logits."""
    lever = rate_Q * (1.0 - rate_Q)  # how far a small shift moves a rate
    missed = lever * (failures_Q / trials_Q - rate_Q)
    _add(sums, lean_missed=missed, lean_square=lever**2)


def lean(sums: Mapping[str, Any]) -> float:
    """Logits by which rates should be moved: what came out was lower than said where negative."""
    shift = sums["lean_missed"] / (sums["lean_square"] + _LEAN_CAUTION)
    return float(min(max(shift, -_MOST_LEAN), _MOST_LEAN))


def without_lean(sums: Mapping[str, Any], rate_Q: Array) -> Array:
    """Rates moved by the shift that would have made the earlier ones right on average."""
    factor = math.exp(lean(sums))
    return np.asarray(rate_Q * factor / (1.0 - rate_Q + rate_Q * factor))


def _add(sums: MutableMapping[str, Any], **new: Array) -> None:
    """Each named sum: what is left of it, and the new groups'."""
    for name, values_Q in new.items():
        sums[name] = _MEMORY ** len(values_Q) * sums[name] + float(values_Q.sum())
