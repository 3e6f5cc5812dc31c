"""A logistic regression over prompts in which every prompt also has a logit of its own.

A group i of prompt q had k failures in n rollouts, some steps ago. Its logit is

    features_q . weight  +  own_q  +  trend . covariates_i

with weight ~ N(0, 1 / precision), own_q ~ N(0, own_variance) and trend ~ N(0, TREND_VARIANCE). The
covariates say how old the group is and how often its prompt had been trained on by then; for the
policy of now they are 0 and today's count. What groups say fades (`shares`).

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


def shares(groups: Groups, fades: Array) -> Array:
    """How much of each group is left today, a row for each of `fades`.

    A rate wanders, so the variance of what is known of it, 1/W after W rollouts, grows with time:
    W rollouts count for W / (1 + fade W steps) later on. So every group of a prompt fades by what
    was known of it in all, and the newer ones add to what is left.
    """
    order = np.lexsort((-groups.age_N, groups.index_N))
    index, trials, age = groups.index_N[order], groups.trials_N[order], groups.age_N[order]
    last = np.append(index[1:] != index[:-1], True)
    waits = age - np.where(last, 0.0, np.append(age[1:], 0.0))
    first = np.flatnonzero(np.append(True, last[:-1]))
    place = np.arange(len(index)) - np.repeat(first, np.diff(first, append=len(index)))
    left = np.empty((len(fades), len(index)))  # of what was known after each group, until the next
    known = np.zeros((len(fades), len(first)))
    by_rank = np.split(np.argsort(place, kind="stable"), np.cumsum(np.bincount(place))[:-1])
    for rows in by_rank:
        at = index[rows]
        known[:, at] += trials[rows]
        left[:, rows] = 1.0 / (1.0 + fades[:, None] * known[:, at] * waits[rows])
        known[:, at] *= left[:, rows]
    for later in by_rank[:0:-1]:
        left[:, later - 1] *= left[:, later]
    result = np.empty_like(left)
    result[:, order] = left
    return result


def fit(
    features_QF: Array,
    groups: Groups,
    precision_F: Array,
    own_variance: float,
    share_N: Array,
    start: tuple[Array, Array] | None = None,
) -> Fit:
    """The mode by Newton steps that never lose, and the curvature there."""
    index, trials, failures, _, covariates = groups
    count, width = features_QF.shape
    extra = covariates.shape[1]
    failures, trials = share_N * failures, share_N * trials
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
    mean_Q: Array, variance_Q: Array, groups: Groups, shift_N: Array, share_N: Array, hold: float
) -> tuple[Array, Array, Array]:
    """Mean, variance and median of the rates of prompts that were tried, over a fine grid.

    `mean_Q` and `variance_Q` are what their kind says of their logits, `hold` how much of that
    counts, and `shift_N` how far the logit of a group then is from that of its prompt now. Near 0
    and 1 a Gaussian would not do: a prompt that never failed may be as far out as its kind allows.
    """
    place, weight = next(_tried(mean_Q, variance_Q, groups, shift_N, share_N[None], [hold]))
    rate = 1.0 / (1.0 + np.exp(-np.clip(place, -40.0, 40.0)))
    mean = (weight * rate).sum(axis=1)
    below = np.cumsum(weight, axis=1) - 0.5 * weight  # a point stands for as much on both sides
    after = np.clip((below < 0.5).sum(axis=1), 1, len(_GRID) - 1)[:, None]
    (x0, x1), (y0, y1) = (
        [np.take_along_axis(of, at, axis=1)[:, 0] for at in (after - 1, after)]
        for of in (below, place)
    )
    middle = y0 + np.clip((0.5 - x0) / np.maximum(x1 - x0, 1e-300), 0.0, 1.0) * (y1 - y0)
    variance = np.maximum((weight * rate**2).sum(axis=1) - mean**2, 1e-12)
    return mean, variance, 1.0 / (1.0 + np.exp(-np.clip(middle, -40.0, 40.0)))


def foretold(
    mean_Q: Array,
    variance_Q: Array,
    groups: Groups,
    shift_N: Array,
    shares_SN: Array,
    holds: Sequence[float],
    came: tuple[Array, Array],
) -> Array:
    """Log chance of the trials and failures that came out now, by the groups of before: a row for
    each way in which these may have faded, a column for each hold that their kind may have."""
    trials, failures = came[0][:, None], came[1][:, None]
    said, chances = None, list[float]()
    for place, weight in _tried(mean_Q, variance_Q, groups, shift_N, shares_SN, holds):
        if said is None:  # the grid is the same for all
            said = np.exp(failures * place - trials * _softplus(place))
        chance = np.maximum((weight * said).sum(axis=1), 1e-300)
        chances.append(float(np.log(chance).sum()))
    return np.reshape(chances, (len(shares_SN), len(holds)))


def _tried(
    mean_Q: Array,
    variance_Q: Array,
    groups: Groups,
    shift_N: Array,
    shares_SN: Array,
    holds: Sequence[float],
) -> Iterator[tuple[Array, Array]]:
    """Logits on a grid around what each prompt's kind says, and how likely its groups make each;
    for one share and one hold after the other, since what a group says is the same for all.
    """
    order = np.argsort(groups.index_N, kind="stable")
    index, trials, failures, *_ = (part[order] for part in groups)
    starts = np.searchsorted(index, np.arange(len(mean_Q)))
    place = mean_Q[:, None] + np.sqrt(variance_Q)[:, None] * _GRID
    # A row a grid point, so that the groups of a prompt, which are added up, lie side by side.
    said = np.repeat(place.T, np.diff(starts, append=len(index)), axis=1)
    said += shift_N[order]
    held = _softplus(said)
    held *= trials
    said *= failures
    said -= held
    for share in shares_SN:
        np.multiply(share[order], said, out=held)
        own = np.add.reduceat(held, starts, axis=1).T.copy()
        for hold in holds:
            weight = own - 0.5 * hold * _GRID**2
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
