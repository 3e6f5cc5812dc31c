"""A logistic regression over prompts in which every prompt also has a logit of its own.

A group i of prompt q had k failures in n rollouts, some steps ago. Its logit is

    features_q . weight  +  own_q  +  trend . covariates_i

with weight ~ N(0, 1 / precision), own_q ~ N(0, own_variance) and trend ~ N(0, TREND_VARIANCE). The
covariates say how old the group is and how often its prompt had been trained on by then; for the
policy of now they are 0 and today's count. What groups say fades (`shares`).

Own logits are integrated out, prompt by prompt: a joint mode over them and the weights would lie
nearer to a rate of 0.5 than the data, however many they are. The posterior of weights and trend is
Gaussian around its mode (Laplace).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dare.curriculum.arrays import Array, compact

TREND_VARIANCE = 0.05
_ROUNDS = 25
_FURTHEST = 4.0  # logits that one Newton step may move a group: the curve is flat far out
_CLOSE = 1e-4  # what another step would add to the log posterior once the mode is found
_NEAR = 1e-2  # logits by which the middle of a quadrature may be off
_GRID = np.linspace(-5.0, 5.0, 121)  # standard deviations of the prior
_NODES = _GRID[::6]  # do for a mean; 11 of Gauss and Hermite err by 0.01 where a rate spreads far
_SHARES = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()
_STEPS = np.linspace(-4.4, 4.4, 23)
# Around a mode they lie ever less densely: what never came right may be far out, on one side alone.
_PLACES, _WEIGHTS = 2.0 * np.sinh(_STEPS / 2.0), np.cosh(_STEPS / 2.0) * (_STEPS[1] - _STEPS[0])


class Groups(NamedTuple):
    """What came out, a row a group. `index_N` says which row of the features is its prompt's."""

    index_N: Array
    trials_N: Array
    failures_N: Array
    age_N: Array
    covariates_NT: Array


class Fit(NamedTuple):
    """The posterior of weights and trend (T last ones)."""

    weight_F: Array
    covariance_FF: Array
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
    start_F: Array | None = None,
) -> Fit:
    """The mode by Newton steps that never lose, and the curvature there.

    Every prompt has groups. What they say of its logit is log-concave, so the curve is positive.
    """
    order = np.argsort(groups.index_N, kind="stable")
    index, trials, failures, _, covariates = (part[order] for part in groups)
    starts = np.searchsorted(index, np.arange(len(features_QF)))
    counts = np.diff(starts, append=len(index))
    trials, failures = share_N[order] * trials, share_N[order] * failures
    # The trend moves a prompt by the mean of its covariates, and its groups apart by the rest.
    middle = np.add.reduceat(covariates, starts) / counts[:, None]
    by_TN = (covariates - middle[index]).T
    design = np.hstack([features_QF, middle])
    width = features_QF.shape[1]
    penalty = np.concatenate([precision_F, np.full(len(by_TN), 1.0 / TREND_VARIANCE)])

    def look(weight: Array) -> tuple[float, Array, Array]:
        """Log posterior there, its slope, and minus its second derivative."""
        logit = (design @ weight)[index] + weight[width:] @ by_TN
        said, slope_Q, curve_Q, slope_T, cross_TQ, curve_TT = _integrated(
            logit, by_TN, trials, failures, index, starts, own_variance
        )
        slope = slope_Q @ design - penalty * weight
        slope[width:] += slope_T
        curve = (design * curve_Q[:, None]).T @ design + np.diag(penalty)
        cross = cross_TQ @ design
        curve[width:] += cross
        curve[:, width:] += cross.T
        curve[width:, width:] += curve_TT
        return said - 0.5 * float(penalty @ weight**2), slope, curve

    weight = np.zeros(len(penalty)) if start_F is None else start_F
    value, slope, curve = look(weight)
    for _ in range(_ROUNDS):
        step = np.linalg.solve(curve, slope)
        if slope @ step < 2.0 * _CLOSE:
            break
        moved = np.abs((design @ step)[index] + step[width:] @ by_TN).max(initial=1e-12)
        length = min(1.0, _FURTHEST / float(moved))
        found = look(weight + length * step)
        while found[0] < value - _CLOSE and length > 1e-3:
            length *= 0.5
            found = look(weight + length * step)
        weight = weight + length * step
        value, slope, curve = found
    evidence = value + 0.5 * float(np.log(penalty).sum() - np.linalg.slogdet(curve)[1])
    return Fit(weight, np.linalg.inv(curve), evidence)


def _integrated(
    logit_N: Array,
    by_TN: Array,
    trials_N: Array,
    failures_N: Array,
    index_N: Array,
    starts_Q: Array,
    own_variance: float,
) -> tuple[float, Array, Array, Array, Array, Array]:
    """Log chance of the groups, every own logit integrated out. Then its slope and minus its second
    derivative by each prompt's logit; by the trend, whose `by_TN` have mean 0 in every prompt, the
    slope, what hangs together with prompts' logits, and minus the second derivative.

    The nodes of a prompt lie around the mode of its own logit, as wide as that is unsure.
    """
    own = np.zeros(len(starts_Q))
    for _ in range(_ROUNDS):
        rate = 1.0 / (1.0 + np.exp(-logit_N - own[index_N]))
        lever = np.add.reduceat(trials_N * rate * (1.0 - rate), starts_Q)
        free = 1.0 / (lever + 1.0 / own_variance)
        step = np.add.reduceat(failures_N - trials_N * rate, starts_Q) - own / own_variance
        step = np.clip(free * step, -_FURTHEST, _FURTHEST)
        own += step
        if np.abs(step).max(initial=0.0) < _NEAR:
            break
    own_JQ = own + np.sqrt(free) * _PLACES[:, None]
    logit_JN = logit_N + own_JQ[:, index_N]
    rate_JN = 1.0 / (1.0 + np.exp(-logit_JN))
    said_JN = trials_N * np.log(rate_JN) - (trials_N - failures_N) * logit_JN
    weight_JQ = np.add.reduceat(said_JN, starts_Q, axis=1) - 0.5 * own_JQ**2 / own_variance
    top_Q = weight_JQ.max(axis=0)
    weight_JQ = np.exp(weight_JQ - top_Q) * _WEIGHTS[:, None]
    whole_Q = weight_JQ.sum(axis=0)
    weight_JQ /= whole_Q
    value = float((top_Q + np.log(whole_Q * np.sqrt(free / (2.0 * np.pi * own_variance)))).sum())
    # By parts: how far own logits go and how unsure they stay says what groups say, and how surely.
    mean_Q = (weight_JQ * own_JQ).sum(axis=0)
    own_JQ -= mean_Q
    curve_Q = (1.0 - (weight_JQ * own_JQ**2).sum(axis=0) / own_variance) / own_variance
    # Few prompts have several groups that the trend moves apart.
    few = np.flatnonzero(by_TN.any(axis=0))
    rows, place = compact(index_N[few])
    starts = np.searchsorted(place, np.arange(len(rows)))
    by_TN, rate_JN, weight_JQ = by_TN[:, few], rate_JN[:, few], weight_JQ[:, rows]
    missed_JN = failures_N[few] - trials_N[few] * rate_JN
    lever_N = trials_N[few] * (weight_JQ[:, place] * rate_JN * (1.0 - rate_JN)).sum(axis=0)
    slope_TJQ = np.empty((len(by_TN), *weight_JQ.shape))
    for by, slope in zip(by_TN, slope_TJQ, strict=True):
        np.add.reduceat(missed_JN * by, starts, axis=1, out=slope)
    mean_TQ = (weight_JQ * slope_TJQ).sum(axis=1)
    slope_TJQ -= mean_TQ[:, None]
    cross_TQ = np.zeros((len(by_TN), len(starts_Q)))
    cross_TQ[:, rows] = -(weight_JQ * own_JQ[:, rows] * slope_TJQ).sum(axis=1) / own_variance
    curve_TT = (by_TN * lever_N) @ by_TN.T
    curve_TT -= np.einsum("tjq,sjq->ts", weight_JQ * slope_TJQ, slope_TJQ)
    return value, mean_Q / own_variance, curve_Q, mean_TQ.sum(axis=1), cross_TQ, curve_TT


def rate_moments(mean_P: Array, variance_P: Array) -> tuple[Array, Array]:
    """Mean and variance of a rate whose logit is Gaussian."""
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
