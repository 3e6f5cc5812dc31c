"""A logistic regression over prompts in which every prompt also has a logit of its own.

A group i of prompt q had k failures in n rollouts, some steps ago. Its logit is

    features_q . weight  +  own_q  +  trend . covariates_i

with weight ~ N(0, 1 / precision), own_q ~ N(0, own_variance) and trend ~ N(0, TREND_VARIANCE). The
covariates say how old the group is and how often its prompt had been trained on by then; for the
policy of now they are 0 and today's count. What a group says fades: it counts for
1 / (1 + fade n age) of itself, as the variance of a rate that wanders grows with time.

The posterior is Gaussian around its mode (Laplace). Own logits are independent given the weights,
so they are eliminated, and a Newton step costs one product of prompts x features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dare.curriculum.arrays import Array

TREND_VARIANCE = 0.05
_ROUNDS = 25
_FURTHEST = 4.0  # logits that one Newton step may move a group: the curve is flat far out
_CLOSE = 1e-4  # gain in log posterior below which the mode is found
_NODES, _SHARES = np.polynomial.hermite_e.hermegauss(11)
_SHARES = _SHARES / _SHARES.sum()
_GRID = np.linspace(-5.0, 5.0, 121)  # standard deviations of the prior


class Groups(NamedTuple):
    """What came out, a row a group. `index_N` says which row of the features is its prompt's."""

    index_N: Array
    trials_N: Array
    failures_N: Array
    age_N: Array
    covariates_NT: Array


class Fit(NamedTuple):
    """The posterior: weights and trend (T last ones), own logits, and how sure they are."""

    weight_F: Array
    own_Q: Array
    covariance_FF: Array
    information_Q: Array
    """What its groups say about each prompt's own logit: one over their variance."""
    log_evidence: float


def fit(
    features_QF: Array,
    groups: Groups,
    precision_F: Array,
    own_variance: float,
    fade: float,
    start: tuple[Array, Array] | None = None,
) -> Fit:
    """The mode by Newton steps that never lose, and the curvature there."""
    index, trials, failures, age, covariates = groups
    count, width = features_QF.shape
    extra = covariates.shape[1]
    share = 1.0 / (1.0 + fade * trials * age)
    failures, trials = share * failures, share * trials
    penalty = np.concatenate([precision_F, np.full(extra, 1.0 / TREND_VARIANCE)])

    def logits(weight: Array, own: Array) -> Array:
        return np.asarray((features_QF @ weight[:width] + own)[index] + covariates @ weight[width:])

    def log_posterior(weight: Array, own: Array, logit: Array) -> float:
        said = float(np.sum(failures * logit - trials * _softplus(logit)))
        held = float(penalty @ weight**2) + float(own @ own) / own_variance
        return said - 0.5 * held

    weight, own = (np.zeros(width + extra), np.zeros(count)) if start is None else start
    logit = logits(weight, own)
    value = log_posterior(weight, own, logit)
    for _ in range(_ROUNDS):
        rate = 1.0 / (1.0 + np.exp(-logit))
        lever = trials * rate * (1.0 - rate)
        missed = failures - trials * rate
        information, curve, by_prompt = _curvature(
            features_QF, index, lever, covariates, penalty, own_variance
        )
        free = 1.0 / (information + 1.0 / own_variance)
        own_slope = np.bincount(index, missed, count) - own / own_variance
        slope = np.concatenate(
            [features_QF.T @ np.bincount(index, missed, count), covariates.T @ missed]
        )
        slope = slope - penalty * weight
        slope[:width] -= features_QF.T @ (information * free * own_slope)
        slope[width:] -= by_prompt.T @ (free * own_slope)
        step = np.linalg.solve(curve, slope)
        coupled = information * (features_QF @ step[:width]) + by_prompt @ step[width:]
        own_step = free * (own_slope - coupled)
        moved = float(np.abs(logits(step, own_step)).max(initial=0.0))
        length = min(1.0, _FURTHEST / max(moved, 1e-12))
        while True:
            there = weight + length * step, own + length * own_step
            logit = logits(*there)
            found = log_posterior(*there, logit)
            if found >= value or length < 1e-3:
                break
            length *= 0.5
        gain, value = found - value, found
        weight, own = there
        if gain < _CLOSE:
            break
    evidence = value + 0.5 * float(np.log(penalty).sum() - np.linalg.slogdet(curve)[1])
    evidence -= 0.5 * float(np.log1p(own_variance * information).sum())
    return Fit(weight, own, np.linalg.inv(curve), information, evidence)


def _curvature(
    features_QF: Array,
    index: Array,
    lever_N: Array,
    covariates_NT: Array,
    penalty: Array,
    own_variance: float,
) -> tuple[Array, Array, Array]:
    """Information on each own logit, the curve of weights and trend with own logits eliminated, and
    how own logits and trend hang together."""
    count, width = features_QF.shape
    information = np.bincount(index, lever_N, count)
    by_prompt = np.column_stack(
        [np.bincount(index, lever_N * one, count) for one in covariates_NT.T]
    )
    kept = 1.0 / (1.0 + own_variance * information)
    curve = np.diag(penalty)
    curve[:width, :width] += (features_QF * (information * kept)[:, None]).T @ features_QF
    cross = features_QF.T @ (by_prompt * kept[:, None])
    curve[:width, width:] += cross
    curve[width:, :width] += cross.T
    curve[width:, width:] += (covariates_NT * lever_N[:, None]).T @ covariates_NT
    curve[width:, width:] -= by_prompt.T @ (by_prompt * (own_variance * kept)[:, None])
    return information, curve, by_prompt


def rate_moments(mean_P: Array, variance_P: Array) -> tuple[Array, Array]:
    """Mean and variance of a rate whose logit is Gaussian (Gauss-Hermite, 11 nodes)."""
    logit = mean_P[:, None] + np.sqrt(variance_P)[:, None] * _NODES
    rate = 1.0 / (1.0 + np.exp(-np.clip(logit, -40.0, 40.0)))
    mean = rate @ _SHARES
    return mean, np.maximum((rate**2) @ _SHARES - mean**2, 1e-12)


def tried_moments(
    mean_Q: Array, variance_Q: Array, groups: Groups, shift_N: Array, fade: float
) -> tuple[Array, Array]:
    """Mean and variance of the rates of prompts that were tried, by summing over a fine grid.

    `mean_Q` and `variance_Q` are what their kind says of their logits, `shift_N` how far the logit
    of a group then is from that of its prompt now. Near 0 and 1 a Gaussian would not do: a prompt
    that never failed may be as far out as its kind allows.
    """
    place, weight = next(_tried(mean_Q, variance_Q, groups, shift_N, [fade]))
    rate = 1.0 / (1.0 + np.exp(-np.clip(place, -40.0, 40.0)))
    mean = (weight * rate).sum(axis=1)
    return mean, np.maximum((weight * rate**2).sum(axis=1) - mean**2, 1e-12)


def foretold(
    mean_Q: Array,
    variance_Q: Array,
    groups: Groups,
    shift_N: Array,
    fades: Sequence[float],
    came: tuple[Array, Array],
) -> Array:
    """Log chance of the trials and failures that came out now, by the groups of before, for each
    speed at which these may fade."""
    trials, failures = came[0][:, None], came[1][:, None]
    said, chances = None, list[float]()
    for place, weight in _tried(mean_Q, variance_Q, groups, shift_N, fades):
        if said is None:  # the grid is the same for all
            said = np.exp(failures * place - trials * _softplus(place))
        chance = np.maximum((weight * said).sum(axis=1), 1e-300)
        chances.append(float(np.log(chance).sum()))
    return np.array(chances)


def _tried(
    mean_Q: Array, variance_Q: Array, groups: Groups, shift_N: Array, fades: Sequence[float]
) -> Iterator[tuple[Array, Array]]:
    """Logits on a grid around what each prompt's kind says, and how likely its groups make each;
    for one `fade` after the other, since what a group says does not depend on it, only its share.
    """
    order = np.argsort(groups.index_N, kind="stable")
    index, trials, failures, age, _ = (part[order] for part in groups)
    starts = np.searchsorted(index, np.arange(len(mean_Q)))
    place = mean_Q[:, None] + np.sqrt(variance_Q)[:, None] * _GRID
    # A row a grid point, so that the groups of a prompt, which are added up, lie side by side.
    said = np.repeat(place.T, np.diff(starts, append=len(index)), axis=1)
    said += shift_N[order]
    held = _softplus(said)
    held *= trials
    said *= failures
    said -= held
    for fade in fades:
        np.multiply(1.0 / (1.0 + fade * trials * age), said, out=held)
        weight = np.add.reduceat(held, starts, axis=1).T.copy() - 0.5 * _GRID**2
        weight = np.exp(weight - weight.max(axis=1, keepdims=True))
        yield place, weight / weight.sum(axis=1, keepdims=True)


def _softplus(values: Array) -> Array:
    """log(1 + exp(values)); np.logaddexp says the same, to rounding, in four times the time."""
    found = np.abs(values)
    np.log1p(np.exp(np.negative(found, out=found), out=found), out=found)
    found += np.maximum(values, 0.0)
    return found


def mixed_chance(rate_P: Array, strength_P: Array, size: int) -> Array:
    """Chance that a group of `size` rollouts has a right and a wrong one, the rate being Beta
    distributed with this mean and the weight of this many rollouts."""
    all_wrong, all_right = np.ones(len(rate_P)), np.ones(len(rate_P))
    for one in range(size):
        all_wrong *= (rate_P * strength_P + one) / (strength_P + one)
        all_right *= ((1.0 - rate_P) * strength_P + one) / (strength_P + one)
    return np.asarray(1.0 - all_wrong - all_right)
