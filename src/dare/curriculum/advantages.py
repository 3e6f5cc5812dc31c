"""Shaped rewards and advantages inside each group (METHOD 6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dare.config.treatment import AdvantageConfig
from dare.curriculum.arrays import Array
from dare.errors import require


def shape(
    reward_R: Array,
    length_R: Array,
    group_R: Array,
    weight_R: Array,
    success_R: Array | None = None,
) -> Array:
    """Length terms on top of the reward (Eqs. 8 and 9), T_max being the group's longest rollout.

    weight < 0 (easy): right rollouts pay |weight| len/T_max. weight > 0 (hard): wrong ones gain
    it. The unit is the gap between the group's right and wrong rewards, 1 where there is no such
    gap to keep: with |weight| < 1 a right rollout stays above every wrong one of its group.
    """
    reward = np.asarray(reward_R, dtype=np.float64)
    success = reward if success_R is None else success_R
    right, wrong = success == 1.0, success == 0.0
    heaviest = float(np.abs(weight_R).max(initial=0.0))
    require(heaviest < 1, "weight", heaviest, "lambda must be below 1")
    groups = int(group_R.max(initial=-1)) + 1
    longest = np.zeros(groups)
    np.maximum.at(longest, group_R, length_R)
    share = length_R / np.maximum(longest[group_R], 1.0)
    lowest, highest = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(lowest, group_R[right], reward[right])
    np.maximum.at(highest, group_R[wrong], reward[wrong])
    gap = np.maximum(lowest - highest, 0.0)
    unit = np.where(np.isfinite(gap), gap, 1.0)[group_R]
    paid = np.where(weight_R < 0, right, wrong)
    return reward + np.where(paid, weight_R * share * unit, 0.0)


@dataclass(frozen=True)
class Advantages:
    """Advantages of one batch, and where they come from."""

    advantage_R: Array
    shaped_R: Array
    varied_N: Array
    """Per group: do its *raw* rewards differ? Shaping never makes a group count as varied."""
    shaping_share: float
    """Share of the absolute advantage that sits in groups whose raw rewards are all equal."""


def advantages(
    reward_R: Array,
    length_R: Array,
    group_R: Array,
    weight_R: Array,
    settings: AdvantageConfig,
    success_R: Array | None = None,
) -> Advantages:
    """(shaped - mean of the group) / (std + std_floor), all std with ddof 0.

    `settings.scale_rewards` says whose std, as in TRL: the group's, that of all rewards of the
    batch, or none (no division). A group of equal raw rewards gets 0 unless `shape_alone`.
    `success_R` says which rollouts are right and wrong where their rewards do not.
    Unscored rollouts (NaN) get 0 and do not enter any mean or deviation.
    """
    reward = np.asarray(reward_R, dtype=np.float64)
    scored = ~np.isnan(reward)
    groups = int(group_R.max(initial=-1)) + 1
    group = group_R[scored]
    shaped = np.full(len(reward), np.nan)
    success = (reward if success_R is None else success_R)[scored]
    shaped[scored] = shape(reward[scored], length_R[scored], group, weight_R[scored], success)
    size = np.maximum(np.bincount(group, minlength=groups), 1)
    mean = np.bincount(group, weights=shaped[scored], minlength=groups) / size
    centred = shaped[scored] - mean[group]
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, group, reward[scored])
    np.maximum.at(high, group, reward[scored])
    varied = high > low
    if settings.scale_rewards == "none":
        scale = np.ones(len(group))
    elif settings.scale_rewards == "batch":
        scale = np.full(len(group), _std(shaped[scored]) + settings.std_floor)
    else:
        std = np.sqrt(np.bincount(group, weights=centred**2, minlength=groups) / size)
        scale = std[group] + settings.std_floor
    # Equal rewards minus their mean leave rounding noise, which a tiny floor would blow up.
    centred[np.abs(centred) < 1e-12] = 0.0
    if not settings.shape_alone:
        centred[~varied[group]] = 0.0
    value = np.zeros(len(reward))
    value[scored] = centred / scale
    mass = np.bincount(group_R, weights=np.abs(value), minlength=groups)
    total = float(mass.sum())
    share = float(mass[~varied].sum()) / total if total > 0 else 0.0
    return Advantages(value, shaped, varied, share)


def thinned(advantage_R: Array, below: float, rng: np.random.Generator) -> Array:
    """Rollouts of a small advantage are kept with chance |advantage| / small, and count as much as
    was left out: the expected gradient is the same.

    Seven right rollouts beside a wrong one say little each, and cost as much to train on. Small is
    what lies under `below` times the usual size, that of all rollouts that have an advantage.
    """
    told = advantage_R[advantage_R != 0.0]
    if below <= 0.0 or not len(told):
        return advantage_R
    chance = np.minimum(np.abs(advantage_R) / (below * np.sqrt(np.mean(told**2))), 1.0)
    kept = rng.random(len(advantage_R)) < chance
    return np.where(kept, advantage_R / np.where(kept, chance, 1.0), 0.0)


def _std(values: Array) -> float:
    return float(values.std()) if len(values) else 0.0
