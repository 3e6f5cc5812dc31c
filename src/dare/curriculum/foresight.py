"""Difficulty of prompts nobody has tried yet, from how the policy reads their reference solutions.

A policy that would write the reference solution itself finds it likely; one that would go astray
finds some step of it unlikely. Reading costs a forward pass, not a rollout, so it can be done for
every prompt and repeated as the policy changes. How likelihood maps to failure is learnt online, by
a logistic regression on the groups that were rolled out. Not in the paper (docs/foresight.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dare.config import ForesightConfig
from dare.curriculum.arrays import Array
from dare.curriculum.estimators.base import Measure, Outcome
from dare.errors import require

LOWEST = 3
STATISTICS = 2 + LOWEST
"""Of a solution's token log-probs: how many there are, their sum, and the three lowest."""
_RIDGE = 1.0
_FEWEST = 16  # groups below which a regression would only repeat their noise
_ROUNDS = 25
_MEMORY = 0.995  # discount per group of the sums behind `strength`
_CYCLE = 8  # steps in which all solutions are read again at the fastest; a policy moves slowly


def features(statistics_QS: Array, age_Q: Array, prior_Q: Array) -> Array:
    """log(1 - x) of sum, mean and the lowest; log length; the cold start's logit; log age.

    The age is how many steps ago the solution was read: what the policy has learnt since then is
    part of what the regression can tell.
    """
    length, total = statistics_QS[:, 0], statistics_QS[:, 1]
    logprobs = np.column_stack([total, total / length, statistics_QS[:, 2:]])
    odds = np.clip(prior_Q, 0.01, 0.99)
    return np.column_stack(
        [
            np.log1p(-np.minimum(logprobs, 0.0)),
            np.log(length),
            np.log(odds / (1.0 - odds)),
            np.log1p(age_Q),
        ]
    )


def solution_statistics(logprobs: Array, sizes_Q: Array) -> Array:
    """The statistics of solutions whose token log-probs lie one after the other.

    More than one low token: a solution may open or close in a way that is not the policy's, which
    costs a token or two and says nothing about whether it can solve the problem.
    """
    starts = np.concatenate([[0], np.cumsum(sizes_Q)[:-1]]).astype(np.int64)
    owner = np.repeat(np.arange(len(sizes_Q)), sizes_Q)
    ascending = logprobs[np.lexsort((logprobs, owner))]
    place = np.minimum(np.arange(LOWEST), sizes_Q[:, None] - 1)  # short ones repeat their last
    total = np.bincount(owner, weights=logprobs, minlength=len(sizes_Q))
    return np.column_stack([sizes_Q, total, ascending[starts[:, None] + place]])


def design(values_QF: Array) -> Array:
    """1, every feature, and every product of two; of the age, the last, no products.

    Old readings are of prompts that are hardly ever drawn, so there is little to learn products
    with the age from, and they would be relied on just there.
    """
    read = values_QF[:, :-1]
    first, second = np.triu_indices(read.shape[1])
    ones = np.ones((len(values_QF), 1))
    return np.hstack([ones, values_QF, read[:, first] * read[:, second]])


def fit_logistic(inputs: Array, failures: Array, trials: Array, ridge: float = _RIDGE) -> Array:
    """Coefficients of the most likely binomial logistic model with a Gaussian prior (Newton)."""
    penalty = np.full(inputs.shape[1], ridge)
    penalty[0] = 1e-3  # the overall rate is not held back
    weight = np.zeros(inputs.shape[1])
    for _ in range(_ROUNDS):
        rate = 1.0 / (1.0 + np.exp(-np.clip(inputs @ weight, -30.0, 30.0)))
        slope = inputs.T @ (failures - trials * rate) - penalty * weight
        curve = (inputs * (trials * rate * (1.0 - rate))[:, None]).T @ inputs + np.diag(penalty)
        step = np.linalg.solve(curve, slope)
        # A full Newton step may overshoot from a far start; a bounded one still arrives.
        weight = weight + step * min(1.0, 4.0 / max(float(np.abs(step).max()), 1e-12))
        if float(np.abs(step).max()) < 1e-8:
            break
    return weight


class Foresight:
    """Predicted failure rates from solution likelihoods, and how much they are worth.

    `strength` is the number of rollouts a prediction counts for: that of a Beta prior whose spread
    explains how far earlier predictions were from the groups that came out.
    """

    def __init__(self, count: int, config: ForesightConfig, measure: Measure) -> None:
        self._measure, self._config = measure, config
        self.arrays: dict[str, Array] = {
            "prompt_statistics": np.full((count, STATISTICS), np.nan),
            "prompt_step": np.full(count, -1, np.int64),
            "prompt_cold": np.full(count, 0.5),
            "prompt_trained": np.zeros(count, bool),
            "memory_features": np.empty((0, STATISTICS + 3)),
            "memory_failures": np.empty(0),
            "memory_trials": np.empty(0),
        }
        self.scalars: dict[str, float] = {"spread": 0.0, "pairs": 0.0}
        self._model: tuple[Array, Array, Array] | None = None

    @property
    def known_P(self) -> Array:
        """Prompts whose solution has been read."""
        return np.isfinite(self.arrays["prompt_statistics"][:, 0])

    @property
    def begun(self) -> bool:
        """Whether the solutions have been read at least once."""
        return bool((self.arrays["prompt_step"] >= 0).any())

    @property
    def ready(self) -> bool:
        """Whether enough groups have come out to predict others."""
        return len(self.arrays["memory_trials"]) >= _FEWEST

    @property
    def strength(self) -> float:
        """Rollouts that a prediction is worth; 0 before anything is known about its errors.

        In a Beta-binomial of strength s, squared errors of a group of n exceed the binomial
        n p (1 - p) by the factor 1 + (n - 1) / (s + 1); the sums hold both sides.
        """
        excess, pairs = self.scalars["spread"], self.scalars["pairs"]
        if pairs <= 0 or excess <= 0:
            return 0.0 if pairs <= 0 else self._config.most_strength
        return float(np.clip(pairs / excess - 1.0, 0.0, self._config.most_strength))

    def read(self, rows: Array, step: int) -> int:
        """Have the policy read the solutions of these prompts; returns the tokens it took."""
        if not len(rows):
            return 0
        result = self._measure(rows)
        values = np.asarray(result.values, dtype=np.float64)
        good = values.shape == (len(rows), STATISTICS)
        fix = f"must be {len(rows)} rows of {STATISTICS} statistics"
        require(good, "services.solutions", values.shape, fix)
        self.arrays["prompt_statistics"][rows] = values
        self.arrays["prompt_step"][rows] = step
        self.arrays["prompt_trained"][rows] = False
        return int(result.tokens)

    def read_all(self, step: int) -> int:
        """Every solution, once, before the first step."""
        return self.read(np.arange(len(self.arrays["prompt_step"])), step)

    def refresh(self, chance_P: Array, step: int, token_budget: int) -> int:
        """Read again what is most stale and most likely to be drawn; returns the tokens.

        Nothing changes the difficulty of a prompt as much as being trained on: those whose groups
        came out since they were last read come first.
        However large the budget, at most an eighth of all that there is to read.
        """
        rows = np.flatnonzero(self.known_P & (self.arrays["prompt_step"] < step))
        length = self.arrays["prompt_statistics"][rows, 0]
        age = step - self.arrays["prompt_step"][rows]
        # The mean keeps prompts that look out of reach from being forgotten for good.
        worth = (chance_P[rows] + chance_P.mean()) * age / length
        worth[self.arrays["prompt_trained"][rows]] = np.inf
        order = np.argsort(-worth, kind="stable")
        whole = float(np.nansum(self.arrays["prompt_statistics"][:, 0]))
        fits = np.cumsum(length[order]) <= min(token_budget, whole / _CYCLE)
        return self.read(np.sort(rows[order[fits]]), step)

    def observe(self, outcome: Outcome) -> None:
        """Groups have come out: judge the predictions made for them, then learn from them."""
        rows = outcome.prompt_Q
        self.arrays["prompt_trained"][rows] = True
        known = self.known_P[rows] & (outcome.trials_Q > 1)
        rows, trials, failures = rows[known], outcome.trials_Q[known], outcome.failures_Q[known]
        if not len(rows):
            return
        if self.ready:
            rate = self.predict(rows, outcome.step)
            expected = trials * rate * (1.0 - rate)
            squared = (failures - trials * rate) ** 2
            keep = _MEMORY ** len(rows)
            for name, value in (
                ("spread", float((squared - expected).sum())),
                ("pairs", float(((trials - 1.0) * expected).sum())),
            ):
                self.scalars[name] = keep * self.scalars[name] + value
        for name, new in (
            ("memory_features", self._features(rows, outcome.step)),
            ("memory_failures", failures),
            ("memory_trials", trials),
        ):
            self.arrays[name] = np.concatenate([self.arrays[name], new])[-self._config.memory :]
        self._model = None

    def predict(self, rows: Array, step: int) -> Array:
        """Predicted failure rate of these prompts, whose solutions have been read, at `step`."""
        if self._model is None:
            held = self.arrays["memory_features"]
            centre, scale = held.mean(axis=0), held.std(axis=0)
            scale = np.where(scale > 1e-9, scale, np.inf)  # a constant says nothing
            inputs = design((held - centre) / scale)
            failures, trials = self.arrays["memory_failures"], self.arrays["memory_trials"]
            self._model = (centre, scale, fit_logistic(inputs, failures, trials))
        centre, scale, weight = self._model
        # Far outside of what was seen a quadratic runs away: stay at the edge of three sigma.
        values = np.clip((self._features(rows, step) - centre) / scale, -3.0, 3.0)
        return 1.0 / (1.0 + np.exp(-np.clip(design(values) @ weight, -30.0, 30.0)))

    def set_cold(self, cold_P: Array) -> None:
        """The cold start's interpolation, one of the features."""
        self.arrays["prompt_cold"] = np.asarray(cold_P, dtype=np.float64).copy()

    def load(self, arrays: Mapping[str, Array], scalars: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        wanted = sorted(self.arrays)
        fix = f"expected {wanted}; the checkpoint was written by another version"
        require(sorted(arrays) == wanted, "foresight state", sorted(arrays), fix)
        self.arrays = {name: np.array(value) for name, value in arrays.items()}
        self.scalars = {name: float(value) for name, value in scalars.items()}
        self._model = None

    def _features(self, rows: Array, step: int) -> Array:
        arrays = self.arrays
        age = np.maximum(step - arrays["prompt_step"][rows], 0)
        return features(arrays["prompt_statistics"][rows], age, arrays["prompt_cold"][rows])
