"""From how likely a solution is to how often the policy fails: a logistic regression.

It is learnt from groups that were rolled out, most of them of medium difficulty, and asked about
all prompts, most of which are not. So it is fitted twice: once on the groups as they are, and once
with each group counting for the prompts that it stands for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dare.curriculum.arrays import Array

_RIDGE = 3.0
_ROUNDS = 25
_BINS = np.arange(0.1, 0.95, 0.1)  # forecasts that stand for each other
_FURTHEST = 3.0
_MOST = 4.0  # times that a group may count, or a fraction of it


class LikelihoodMap(NamedTuple):
    """A fitted map; features are centred and scaled as those of all prompts."""

    centre: Array
    scale: Array
    weight: Array

    def predict(self, features_QF: Array) -> Array:
        """Failure rates; at the edge of three sigma, beyond which a quadratic would run away."""
        values = (features_QF - self.centre) / self.scale
        return _rate(design(np.clip(values, -_FURTHEST, _FURTHEST)), self.weight)


def features(statistics_QS: Array, age_Q: Array, prior_Q: Array) -> Array:
    """log(1 - x) of sums, lowest and first; log length; the cold start's logit; log age.

    The age is how many steps ago the solution was read: what the policy has learnt since then is
    part of what the regression can tell.
    """
    odds = np.clip(prior_Q, 0.01, 0.99)
    return np.column_stack(
        [
            np.log1p(-np.minimum(statistics_QS[:, 1:], 0.0)),
            np.log(statistics_QS[:, 0]),
            np.log(odds / (1.0 - odds)),
            np.log1p(age_Q),
        ]
    )


def design(values_QF: Array) -> Array:
    """1, every feature, and every product of two that were read; none of the last two.

    Old readings are of prompts that are hardly ever drawn, so there is little to learn products
    with the age from, and they would be relied on just there. The cold start says too little.
    """
    read = values_QF[:, :-2]
    first, second = np.triu_indices(read.shape[1])
    ones = np.ones((len(values_QF), 1))
    return np.hstack([ones, values_QF, read[:, first] * read[:, second]])


def fit_map(features_QF: Array, failures_Q: Array, trials_Q: Array, all_PF: Array) -> LikelihoodMap:
    """The map learnt from groups with these features, to be asked about prompts with `all_PF`."""
    spread = np.maximum(all_PF.std(axis=0), features_QF.std(axis=0))
    scale = np.where(spread > 1e-9, spread, np.inf)  # a constant says nothing
    centre = all_PF.mean(axis=0)
    inputs = design((features_QF - centre) / scale)
    first = LikelihoodMap(centre, scale, fit_logistic(inputs, failures_Q, trials_Q))
    worth = balance(first.predict(features_QF), first.predict(all_PF))
    second = fit_logistic(inputs, worth * failures_Q, worth * trials_Q, start=first.weight)
    return LikelihoodMap(centre, scale, second)


def balance(drawn_Q: Array, all_P: Array) -> Array:
    """What each group counts for, 1 on average: sqrt(share of prompts / share of groups) by bin.

    The bins are of forecasts. Root and bounds keep a few groups of prompts that are seldom drawn
    from deciding alone, and groups of a kind that there is no more from being forgotten.
    """
    bins = len(_BINS) + 1
    place = np.digitize(drawn_Q, _BINS)
    groups = np.bincount(place, minlength=bins) / len(drawn_Q)
    prompts = np.bincount(np.digitize(all_P, _BINS), minlength=bins) / len(all_P)
    worth = np.clip(np.sqrt(prompts[place] / groups[place]), 1.0 / _MOST, _MOST)
    return np.asarray(worth / worth.mean())


def fit_logistic(
    inputs: Array,
    failures: Array,
    trials: Array,
    ridge: float = _RIDGE,
    start: Array | None = None,
) -> Array:
    """Coefficients of the most likely binomial logistic model with a Gaussian prior (Newton)."""
    penalty = np.full(inputs.shape[1], ridge)
    penalty[0] = 1e-3  # the overall rate is not held back
    weight = np.zeros(inputs.shape[1]) if start is None else start
    for _ in range(_ROUNDS):
        rate = _rate(inputs, weight)
        slope = inputs.T @ (failures - trials * rate) - penalty * weight
        curve = (inputs * (trials * rate * (1.0 - rate))[:, None]).T @ inputs + np.diag(penalty)
        step = np.linalg.solve(curve, slope)
        # A full Newton step may overshoot from a far start; a bounded one still arrives.
        weight = weight + step * min(1.0, 4.0 / max(float(np.abs(step).max()), 1e-12))
        if float(np.abs(step).max()) < 1e-8:
            break
    return weight


def _rate(inputs: Array, weight: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(inputs @ weight, -30.0, 30.0))))
