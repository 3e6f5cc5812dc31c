"""How many rollouts a prediction is worth, from the groups that came out.

If the true rate is Beta distributed around a prediction p with strength s, the squared error of a
group of n exceeds the binomial's n p (1 - p) by n (n - 1) p (1 - p) / (s + 1). Sums of both sides
over groups, older ones discounted, give s, or by how much a claimed s is too large.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from dare.curriculum.arrays import Array

_MEMORY = 0.995  # discount of the sums per group
_CAUTION = 8.0  # in units of the sums, a handful of groups: until then a claim is believed
_LEAST = 0.02  # of a claim that is left, however wrong it was


def add_errors(
    sums: MutableMapping[str, Any],
    failures_Q: Array,
    trials_Q: Array,
    rate_Q: Array,
    likely_Q: Array,
    claimed_Q: Array | float = 0.0,
) -> None:
    """Judge predictions `rate_Q` that claimed to be worth `claimed_Q` rollouts.

    `likely_Q` are the rates that the binomial's variance is taken from, the best that are known.
    """
    binomial = trials_Q * likely_Q * (1.0 - likely_Q)
    keep = _MEMORY ** len(trials_Q)
    excess = float(((failures_Q - trials_Q * rate_Q) ** 2 - binomial).sum())
    claimed = float(((trials_Q - 1.0) * binomial / (claimed_Q + 1.0)).sum())
    sums["excess"] = keep * sums["excess"] + excess
    sums["claimed"] = keep * sums["claimed"] + claimed


def strength(sums: MutableMapping[str, Any], most: float) -> float:
    """Rollouts that predictions are worth which claimed none; 0 before any was judged."""
    excess, pairs = sums["excess"], sums["claimed"]
    if pairs <= 0:
        return 0.0
    return most if excess <= 0 else min(max(pairs / excess - 1.0, 0.0), most)


def honesty(sums: MutableMapping[str, Any]) -> float:
    """Share of the claimed rollouts that predictions were really worth, at most 1."""
    excess, claimed = sums["excess"] + _CAUTION, sums["claimed"] + _CAUTION
    return 1.0 if excess <= claimed else max(claimed / excess, _LEAST)
