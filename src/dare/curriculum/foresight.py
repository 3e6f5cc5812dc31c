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
from dare.curriculum.estimators.dare.features import STATISTICS
from dare.curriculum.likelihood_map import LikelihoodMap, features, fit_map
from dare.curriculum.worth import judge_forecasts, strength
from dare.errors import require

_FEWEST = 16  # groups below which a regression would only repeat their noise
_CROWD = 4096  # prompts that stand for all when the map is fitted
_ANYWAY = 0.1  # of the mean worth of a reading: what one is worth of a prompt that looks certain
_CYCLE = 8  # steps in which all solutions are read again at the fastest; a policy moves slowly


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
            "memory_features": np.empty((0, STATISTICS + 2)),
            "memory_failures": np.empty(0),
            "memory_trials": np.empty(0),
            "map_centre": np.empty(0),
            "map_scale": np.empty(0),
            "map_weight": np.empty(0),
        }
        self.scalars: dict[str, float] = {"excess": 0.0, "claimed": 0.0}

    @property
    def known_P(self) -> Array:
        """Prompts whose solution has been read."""
        return np.asarray(np.isfinite(self.arrays["prompt_statistics"]).all(axis=1))

    @property
    def begun(self) -> bool:
        """Whether the solutions have been read at least once."""
        return bool((self.arrays["prompt_step"] >= 0).any())

    @property
    def ready(self) -> bool:
        """Whether enough groups have come out to predict others."""
        return len(self.arrays["map_weight"]) > 0

    @property
    def strength(self) -> float:
        """Rollouts that a prediction is worth; 0 before anything is known about its errors."""
        return strength(self.scalars, self._config.most_strength)

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

    def refresh(self, difficulty_P: Array, step: int, token_budget: int) -> int:
        """Read again what is most stale and may have moved most; returns the tokens.

        Where the policy has become better by a logit, a rate d moves by d (1 - d). Nothing changes
        it as much as being trained on: prompts whose groups came out since they were last read come
        first. However large the budget, at most an eighth of all that there is to read.
        """
        read = self.arrays["prompt_step"]
        new = read < 0  # prompts that joined the data of a run
        known = self.known_P
        rows = np.flatnonzero((known | new) & (read < step))
        every = np.where(known, self.arrays["prompt_statistics"][:, 0], 0.0)
        usual = every.sum() / max(np.count_nonzero(known), 1)
        length = np.where(new, max(usual, 1.0), every)[rows]
        moves_P = difficulty_P * (1.0 - difficulty_P)
        # A share of the mean keeps prompts that look certain from being forgotten for good.
        worth = (moves_P[rows] + _ANYWAY * moves_P.mean()) * (step - read[rows]) / length
        worth[self.arrays["prompt_trained"][rows] | new[rows]] = np.inf
        order = np.argsort(-worth, kind="stable")
        fits = np.cumsum(length[order]) <= min(token_budget, float(every.sum()) / _CYCLE)
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
            judge_forecasts(self.scalars, failures, trials, rate)
        for name, new in (
            ("memory_features", self._features(rows, outcome.step)),
            ("memory_failures", failures),
            ("memory_trials", trials),
        ):
            self.arrays[name] = np.concatenate([self.arrays[name], new])[-self._config.memory :]
        self._fit(outcome.step)

    def predict(self, rows: Array, step: int) -> Array:
        """Predicted failure rate of these prompts, whose solutions have been read, at `step`."""
        held = LikelihoodMap(*(self.arrays[f"map_{name}"] for name in LikelihoodMap._fields))
        return held.predict(self._features(rows, step))

    def set_cold(self, cold_P: Array) -> None:
        """The cold start's interpolation, one of the features."""
        self.arrays["prompt_cold"] = np.asarray(cold_P, dtype=np.float64).copy()

    def load(self, arrays: Mapping[str, Array], scalars: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        wanted = sorted(self.arrays)
        fix = f"expected {wanted}; the checkpoint was written by another version"
        require(sorted(arrays) == wanted, "foresight state", sorted(arrays), fix)
        width = np.shape(arrays["prompt_statistics"])[-1]
        fix = f"expected {STATISTICS} statistics; the checkpoint was written by another version"
        require(width == STATISTICS, "foresight state", width, fix)
        self.arrays = {name: np.array(value) for name, value in arrays.items()}
        self.scalars = {name: float(value) for name, value in scalars.items()}

    def _fit(self, step: int) -> None:
        """Learn the map anew. It is part of the state: it depends on what was read by now."""
        arrays = self.arrays
        groups = arrays["memory_features"]
        if len(groups) < _FEWEST:
            return
        rows = np.flatnonzero(self.known_P)
        crowd = self._features(rows[:: -(-len(rows) // _CROWD)], step)
        found = fit_map(groups, arrays["memory_failures"], arrays["memory_trials"], crowd)
        for name, value in found._asdict().items():
            arrays[f"map_{name}"] = value

    def _features(self, rows: Array, step: int) -> Array:
        arrays = self.arrays
        age = np.maximum(step - arrays["prompt_step"][rows], 0)
        return features(arrays["prompt_statistics"][rows], age, arrays["prompt_cold"][rows])
