"""Failure rates from outcomes alone: evidence that fades, a population drift, rates learnt online.

Past outcomes, used well, say more about the policy of now than a fresh group does. Per prompt the
filter keeps discounted sums of failures S and rollouts W. Between visits the difficulty wanders
like a random walk, so the variance 1/W grows linearly in time: W <- W / (1 + c W dt). How fast (c)
is chosen online from a small grid by how well each new group was predicted, and how surely. What
all prompts do together (the policy improves) is a drift mu in logits per step, regressed on the
same groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dare.curriculum.arrays import Array

RATES = (2e-5, 1.4e-4, 7e-4, 3.5e-3, 1.75e-2, 8.75e-2)
"""Forgetting per rollout of evidence and step; a factor of 5 apart is as fine as data can tell."""
_MEMORY = 0.97  # discount of the population sums per pass over the seen prompts
_CAUTION = 500.0  # groups until which the drift is shrunk toward 0
_LARGEST_DRIFT = 1.0  # logits that the drift may move an estimate
_EDGE = 1e-6
_RARE = 0.02  # no forgetting is ruled out by one failure of a prompt that had none


class HistoryFilter:
    """Failure rate and evidence of each prompt at any step; O(rows observed) an update."""

    def __init__(self, count: int, prior_strength: float, rates: tuple[float, ...] = RATES) -> None:
        self.rates = np.asarray(rates, dtype=np.float64)
        size = (count, len(self.rates))
        # S, W and U = sum of rollouts x their step, which gives the mean age of the evidence.
        self.arrays: dict[str, Array] = {
            "failures": np.zeros(size, np.float32),
            "rollouts": np.zeros(size, np.float32),
            "moments": np.zeros(size, np.float32),
            "last": np.zeros(count, np.int64),
            "prior": np.full(count, 0.5),
            "seen": np.zeros(count, bool),
        }
        self._strength = prior_strength
        self.population: dict[str, Any] = {
            name: [0.0] * len(self.rates) for name in ("slope", "square", "groups", "loss")
        }

    @property
    def best(self) -> int:
        """The rate in use: least surprised so far; the middle one before any."""
        loss = np.asarray(self.population["loss"])
        return int(np.argmin(loss)) if loss.any() else len(loss) // 2

    @property
    def rate(self) -> float:
        """Forgetting per rollout of evidence and step that predicts best so far."""
        return float(self.rates[self.best])

    @property
    def drift(self) -> Array:
        """Logits per step that difficulty moves for all prompts, per rate."""
        slope, square = np.asarray(self.population["slope"]), np.asarray(self.population["square"])
        groups = np.asarray(self.population["groups"])
        return slope / (square + 1e-12) * groups / (groups + _CAUTION)

    def estimate(self, rows: Array, step: int) -> tuple[Array, Array]:
        """(failure rate, effective rollouts) of these prompts at this step."""
        _, weight, _, _, _, rate = self._at(rows, step, slice(self.best, self.best + 1))
        return rate[:, 0], weight[:, 0]

    def observe(self, rows: Array, trials: Array, failures: Array, step: int) -> None:
        """New groups: first judge every rate by how well it predicted them, then take them in."""
        arrays, population = self.arrays, self.population
        every = slice(None)
        failed, weight, moment, plain, age, predicted = self._at(rows, step, every)
        known = arrays["seen"][rows][:, None]
        rate = (failures / trials)[:, None]
        keep = _MEMORY ** (len(rows) / max(int(np.count_nonzero(arrays["seen"])), len(rows)))
        # Evidence of the same step says nothing about drift; rounding would make much of it.
        lever = plain * (1.0 - plain) * np.where(age >= 0.5, age, 0.0) * known
        self._decay(population, "slope", keep, lever * (rate - plain))
        self._decay(population, "square", keep, lever**2)
        self._decay(population, "groups", keep, known * np.ones_like(plain))
        missed = surprise(failures[:, None], trials[:, None], predicted, weight)
        self._decay(population, "loss", keep, known * missed)
        arrays["failures"][rows] = failed + failures[:, None]
        arrays["rollouts"][rows] = weight + trials[:, None]
        arrays["moments"][rows] = moment + trials[:, None] * step
        arrays["last"][rows] = step
        arrays["seen"][rows] = True

    def _at(self, rows: Array, step: int, which: slice) -> tuple[Array, ...]:
        """S, W, U, S/W, age and drift-corrected rate at `step`; nothing is written."""
        arrays = self.arrays
        seen = arrays["seen"][rows][:, None]
        weight = arrays["rollouts"][rows, which].astype(np.float64)
        elapsed = (step - arrays["last"][rows])[:, None]
        fade = 1.0 / (1.0 + self.rates[which] * weight * elapsed)
        # The prior is evidence like any other and fades with it.
        prior = self._strength * arrays["prior"][rows][:, None]
        failed = np.where(seen, arrays["failures"][rows, which] * fade, prior)
        moment = np.where(seen, arrays["moments"][rows, which] * fade, self._strength * step)
        weight = np.where(seen, weight * fade, self._strength)
        plain = np.clip(failed / weight, _EDGE, 1.0 - _EDGE)
        age = step - moment / weight
        shift = np.clip(self.drift[which] * age, -_LARGEST_DRIFT, _LARGEST_DRIFT)
        odds = plain / (1.0 - plain) * np.exp(shift)
        return failed, weight, moment, plain, age, odds / (1.0 + odds)

    @staticmethod
    def _decay(population: dict[str, Any], name: str, keep: float, new: Array) -> None:
        population[name] = (keep * np.asarray(population[name]) + new.sum(axis=0)).tolist()


def surprise(failures: Array, trials: Array, rate: Array, weight: Array) -> Array:
    """-log P of the failures in a group of a prompt whose rate is known from so many rollouts.

    The Beta-binomial law up to its binomial coefficient. What a forgetting said and how surely both
    count: after one earlier group all say the same, and only the error that they admit differs.
    """
    rate = np.clip(rate, _RARE, 1.0 - _RARE)
    a, b, total = weight * rate, weight * (1.0 - rate), np.zeros_like(rate)
    for trial in range(int(trials.max(initial=0))):  # as a product over trials
        total -= np.where(trial < failures, np.log(a + trial), 0.0)
        total -= np.where(trial < trials - failures, np.log(b + trial), 0.0)
        total += np.where(trial < trials, np.log(weight + trial), 0.0)
    return total


def beta_median(rate: Array, evidence: Array) -> Array:
    """Median of Beta(evidence x rate, evidence x (1 - rate)): the read-out with least |error|.

    The usual (a - 1/3) / (a + b - 2/3) from two rollouts on; with less evidence the approximation
    breaks down, and the step away from the mean stays what it is at two.
    """
    away = (2.0 / 3.0) / np.maximum(evidence - 2.0 / 3.0, 4.0 / 3.0)
    return np.clip(rate + (rate - 0.5) * away, 0.0, 1.0)


def predictive_median(rate: Array, evidence: Array, group: int) -> Array:
    """Median of the failure rate that a fresh group of this size will show (Beta-binomial).

    The forecast of an *observed* rate with least absolute error. As an estimate of the true rate
    it is worse than `beta_median`, since it is rounded to k / group.
    """
    a, b = np.maximum(evidence * rate, 1e-9), np.maximum(evidence * (1.0 - rate), 1e-9)
    chance = np.ones_like(rate)
    for trial in range(group):  # P(no failure) as a product over trials
        chance = chance * (b + trial) / (a + b + trial)
    below, forecast = chance.copy(), np.zeros_like(rate)
    for k in range(group):  # P(k + 1) / P(k), summed until half of the mass is below
        forecast += below < 0.5
        chance = chance * (group - k) / (k + 1) * (a + k) / (b + group - k - 1)
        below += chance
    return forecast / group
