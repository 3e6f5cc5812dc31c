"""LiveEstimator: one regression a step over the groups that came out, asked about every prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, compact, to_numpy
from dare.curriculum.estimators.base import Estimator, Measure, Wanted
from dare.curriculum.estimators.dare.features import (
    DIRECTIONS,
    STATISTICS,
    principal_directions,
    solution_features,
    standard,
)
from dare.curriculum.estimators.dare.regression import (
    Fit,
    Groups,
    fit,
    foretold,
    mixed_chance,
    rate_moments,
    shares,
    tried_moments,
)
from dare.curriculum.rollouts import Outcome
from dare.errors import require

MEMORY = 16384
"""Groups that the regression learns from, the latest ones."""
_FIRST = {"own": 1.0, "states": 1.5, "length": 0.1, "solutions": 0.05}
"""Variances in squared logits before the data has said anything; each is moved by its evidence."""
_BELIEF = 1.5  # deviation, in log, of what these variances may be before any data
_MOVE = 1.5  # factor by which a variance is moved where that makes the groups more likely
_MOST = 50.0  # such a variance at most: beyond, nodes of the quadratures lie too far apart
_FREE = 16.0  # variance of the intercept: the overall rate is not held back
_FADES = np.geomspace(1e-4, 0.1, 7)  # how fast evidence may fade; a belief about which is kept
_HOLDS = np.array([1.0, 0.3, 0.1])  # share of what kinds say that holds tried prompts; likewise
_BELIEF_MEMORY = 0.95  # of both beliefs, a step: a policy may come to move faster
_DOUBT = np.add.outer(  # minus their log prior
    np.log(_FADES / 1e-3) ** 2 / (2.0 * np.log(10.0) ** 2), 3.0 * np.arange(len(_HOLDS))
)
_LEAST = 1e-3  # rollouts that an estimate is worth at least
_AGE = 10.0  # steps that the trend is told in
_ANYWAY = 0.1  # share of the mean worth of a reading that one of a prompt that looks certain has
_CYCLE = 32  # steps in which everything is read again at the fastest: a policy moves slowly
_LENGTH_RIDGE = 8.0  # groups that the mean length counts for beside each coefficient


class LiveEstimator(Estimator):
    """Failure rates for the policy of now: what prompts like this one do, and how this one differs.

    Features are read from the policy: its state on the prompt (`states`), and how likely it finds
    the reference solution (`solutions`). Neither is needed: without both, prompts share a mean.
    """

    needs = frozenset({"states", "solutions", "lengths"})
    uses_prior = False
    scores: Wanted = "none"

    def __init__(
        self,
        count: int,
        states: Measure | None = None,
        solutions: Measure | None = None,
        lengths: Array | None = None,
        *,
        ways: int = 1,
    ) -> None:
        super().__init__(count)
        self._measures = {"states": states, "solutions": solutions}
        self._length = np.zeros((count, 0))
        if lengths is not None:
            self._length = standard(np.log(np.maximum(lengths, 1.0))[:, None])
        per_prompt: dict[str, Array] = {
            "strength": np.full(count, 1.0),
            "tokens": np.full(count, np.nan),
            "median": np.full(count, 0.5),
            "kind_logit": np.zeros(count),
            "kind_variance": np.ones(count),
            "visits": np.zeros(count, np.int64),
            "states": np.zeros((count, 0), np.float32),
            "states_step": np.full(count, -1, np.int64),
            "solutions": np.full((count, 0 if solutions is None else STATISTICS), np.nan),
            "solutions_step": np.full(count, -1, np.int64),
        }
        memory = ("prompt", "step", "visits", "trials", "failures", "tokens")
        self._arrays.update(per_prompt)
        self._arrays.update({f"memory_{name}": np.zeros(0) for name in memory})
        self._arrays.update({f"map_{name}": np.zeros(0) for name in ("centre", "weight")})
        self._arrays["map_directions"] = np.zeros((0, 0))
        self._scalars.update(spread=dict(_FIRST), turn=0, trend=[0.0, 0.0])
        self._scalars.update(
            scores=np.zeros((ways, *_DOUBT.shape)).tolist(), fade=1e-3, hold=1.0, way=0
        )

    # ---- what is asked ----

    def evidence(self) -> Array:
        """Rollouts that each estimate is worth."""
        return self._arrays["strength"].copy()

    def median(self) -> Array:
        """The middle of the belief about prompts that were tried; the mean of the others, about
        which too little is known."""
        return self._arrays["median"]

    def mixed(self, size: int) -> Array:
        """Chance that a group of this size has a right and a wrong rollout, by all that is known
        and how surely."""
        return mixed_chance(self._arrays["difficulty"], self._arrays["strength"], size)

    def tokens(self) -> Array | None:
        """Tokens that a response is expected to take; None before any came out."""
        tokens = self._arrays["tokens"]
        return None if np.isnan(tokens).any() else tokens

    def sample(self, rng: np.random.Generator) -> Array:
        """A draw from the belief about each difficulty."""
        rate, strength = self._arrays["difficulty"], self._arrays["strength"]
        return rng.beta(rate * strength, (1.0 - rate) * strength)

    def metrics(self) -> dict[str, float]:
        """How far prompts differ by their features and beyond them, and what the trend is."""
        spread = self._scalars["spread"]
        return {
            "own_deviation": math.sqrt(spread["own"]),
            "forecast_deviation": math.sqrt(spread["states"]),
            "evidence_fade": self._scalars["fade"],
            "difficulty_trend": -self._scalars["trend"][0] / _AGE,
            "training_gain": -self._scalars["trend"][1],
        }

    # ---- what is told ----

    def observe(self, outcome: Outcome) -> None:
        """Judge what was said of these groups, remember them, and learn anew."""
        arrays, rows = self._arrays, outcome.prompt_Q
        if not len(rows):
            return
        self._judge(outcome)
        new = {
            "prompt": rows,
            "step": np.full(len(rows), outcome.step),
            "visits": arrays["visits"][rows],
            "trials": outcome.trials_Q,
            "failures": outcome.failures_Q,
            "tokens": np.full(len(rows), np.nan) if outcome.tokens_Q is None else outcome.tokens_Q,
        }
        for name, values in new.items():
            for kept in (f"memory_{name}", f"memory_now_{name}"):
                if kept in arrays:
                    arrays[kept] = np.concatenate([arrays[kept], values])[-MEMORY:]
        arrays["visits"][rows] += 1
        self._learn(outcome.step, move=True)

    def read(self, step: int, rng: np.random.Generator, token_budget: int) -> int:
        """Read states and solutions: all of them once, then what is stalest and may matter most.

        Nothing is read before a group has come out: until then all prompts are alike.
        """
        spent = 0
        if not len(self._arrays["memory_prompt"]):
            return 0
        for name, measure in self._measures.items():
            if measure is not None:
                spent += self._read(name, measure, step, rng, token_budget - spent)
        if spent:
            self._learn(step, move=False)
        return spent

    # ---- reading ----

    def _read(
        self, name: str, measure: Measure, step: int, rng: np.random.Generator, budget: int
    ) -> int:
        arrays, read = self._arrays, self._arrays[f"{name}_step"]
        first = not (read >= 0).any()
        rows = np.arange(self.count) if first else self._worth_reading(name, step, budget)
        if not len(rows):
            return 0
        result = measure(rows)
        values = to_numpy(result.values, np.float64, f"services.{name}")
        fix = f"must give one row for each of {len(rows)} prompts"
        require(
            values.ndim == 2 and len(values) == len(rows), f"services.{name}", values.shape, fix
        )
        if name == "states":
            values = self._projected(values, rng, first)
        else:
            fix = f"must give {STATISTICS} statistics a prompt"
            require(values.shape[1] == STATISTICS, "services.solutions", values.shape, fix)
        if arrays[name].shape[1] != values.shape[1]:
            arrays[name] = np.zeros((self.count, values.shape[1]), np.float32)
        arrays[name][rows] = values
        read[rows] = step
        self._scalars[f"{name}_tokens"] = result.tokens / len(rows)
        return int(result.tokens)

    def _worth_reading(self, name: str, step: int, budget: int) -> Array:
        """Prompts that may have moved most since they were read, as many as the budget pays."""
        read, each = self._arrays[f"{name}_step"], max(self._scalars[f"{name}_tokens"], 1e-9)
        most = min(int(budget / each), -(-self.count // _CYCLE))
        if most <= 0:
            return np.empty(0, np.int64)
        rate = self._arrays["difficulty"]
        moves = rate * (1.0 - rate)
        worth = (moves + _ANYWAY * moves.mean()) * (step - read)
        worth[read < 0] = np.inf  # prompts that joined the data of a run
        rows = np.argsort(-worth, kind="stable")[:most]
        return np.sort(rows[read[rows] < step])

    def _projected(self, states: Array, rng: np.random.Generator, first: bool) -> Array:
        """States along the directions that were chosen at the first reading."""
        arrays = self._arrays
        if first:
            count = min(DIRECTIONS, max(1, self.count // 4))
            centre, directions, scale = principal_directions(states, count, rng)
            arrays["map_centre"], arrays["map_directions"] = centre, directions / scale
        fix = f"states have {len(arrays['map_centre'])} numbers; another model was read before"
        require(states.shape[1] == len(arrays["map_centre"]), "services.states", states.shape, fix)
        return np.asarray((states - arrays["map_centre"]) @ arrays["map_directions"])

    # ---- learning ----

    def _design(self) -> tuple[Array, Array]:
        """Features of every prompt, and the name of the variance that each column has."""
        arrays = self._arrays
        parts = {"free": np.ones((self.count, 1)), "length": self._length}
        parts["states"] = arrays["states"].astype(np.float64)
        read = (arrays["solutions_step"] >= 0).any() and arrays["solutions"].shape[1]
        if read:
            parts["solutions"] = solution_features(arrays["solutions"])
        names = np.concatenate([np.full(part.shape[1], name) for name, part in parts.items()])
        return np.hstack(list(parts.values())), names

    def _learn(self, step: int, *, move: bool) -> None:
        """Fit the groups in memory and ask about every prompt."""
        arrays, scalars = self._arrays, self._scalars
        rows, index = compact(arrays["memory_prompt"].astype(np.int64))
        features, names = self._design()
        groups = self._groups(index, slice(None), step, scalars["way"])
        share = shares(groups, np.array([scalars["fade"]]))[0]
        width = features.shape[1] + groups.covariates_NT.shape[1]
        weight = arrays["map_weight"] if len(arrays["map_weight"]) == width else np.zeros(width)
        found = self._fitted(features[rows], names, groups, share, weight)
        if move:
            found = self._move(features[rows], names, groups, share, found)
        arrays["map_weight"] = found.weight_F
        scalars["trend"] = found.weight_F[features.shape[1] :].tolist()
        self._ask(features, names, rows, groups, share, found.covariance_FF)
        self._expect_lengths(features, rows, index)

    def _fitted(
        self,
        features_QF: Array,
        names: Array,
        groups: Groups,
        share: Array,
        start: Array,
        spread: Mapping[str, float] | None = None,
    ) -> Fit:
        spread = self._scalars["spread"] if spread is None else spread
        variance = {"free": _FREE, **spread}
        precision = np.array([1.0 / variance[name] for name in names.tolist()])
        return fit(features_QF, groups, precision, spread["own"], share, start)

    def _move(
        self, features_QF: Array, names: Array, groups: Groups, share: Array, found: Fit
    ) -> Fit:
        """One variance a step, in turn: up or down where that makes the groups more likely."""
        scalars = self._scalars
        present = [name for name in _FIRST if name == "own" or name in names]
        name = present[scalars["turn"] % len(present)]
        scalars["turn"] += 1
        for factor in (_MOVE, 1.0 / _MOVE):
            while True:
                spread = {**scalars["spread"], name: scalars["spread"][name] * factor}
                if spread[name] > _MOST:
                    break
                other = self._fitted(features_QF, names, groups, share, found.weight_F, spread)
                gain = other.log_evidence + _belief(spread) - found.log_evidence
                if gain <= _belief(scalars["spread"]) + 1e-3:
                    break
                scalars["spread"], found = spread, other
        return found

    def _groups(self, index: Array, held: Any, step: int, way: int) -> Groups:
        """Groups in memory as they look from this step; `way` is for those who know several."""
        return self._looked_at("memory_", index, held, step)

    def _looked_at(self, name: str, index: Array, held: Any, step: int) -> Groups:
        trials, failures, then, visits = (
            self._arrays[name + part][held] for part in ("trials", "failures", "step", "visits")
        )
        age = step - then
        return Groups(index, trials, failures, age, np.column_stack([age / _AGE, np.log1p(visits)]))

    def _shift(self, groups: Groups, rows: Array) -> Array:
        """How far the logit of each group then is from its prompt's now, by the trend."""
        by_age, by_visits = self._scalars["trend"]
        visits = np.log1p(self._arrays["visits"][rows].astype(np.float64))[groups.index_N]
        then = groups.covariates_NT
        return np.asarray(then[:, 0] * by_age + (then[:, 1] - visits) * by_visits)

    def _ask(
        self,
        features: Array,
        names: Array,
        rows: Array,
        groups: Groups,
        share: Array,
        covariance_FF: Array,
    ) -> None:
        """The rate of every prompt for the policy of now, and how many rollouts that is worth."""
        arrays, spread = self._arrays, self._scalars["spread"]
        now = np.column_stack(
            [features, np.zeros(self.count), np.log1p(arrays["visits"].astype(np.float64))]
        )
        variance = np.einsum("pf,pf->p", now @ covariance_FF, now) + spread["own"]
        if "states" in names:
            variance = variance + spread["states"] * (arrays["states_step"] < 0)
        logit = now @ arrays["map_weight"]
        arrays["kind_logit"], arrays["kind_variance"] = logit, variance
        mean, unsure = rate_moments(logit, variance)
        kind, hold = (logit[rows], variance[rows]), self._scalars["hold"]
        mean[rows], unsure[rows], middle = tried_moments(
            *kind, groups, self._shift(groups, rows), share, hold
        )
        arrays["difficulty"], arrays["median"] = mean, mean.copy()
        arrays["median"][rows] = middle
        arrays["strength"] = np.maximum(mean * (1.0 - mean) / unsure - 1.0, _LEAST)

    def _expect_lengths(self, features: Array, rows: Array, index: Array) -> None:
        """Log length of a response by ridge regression on the same features."""
        arrays = self._arrays
        known = np.isfinite(arrays["memory_tokens"]) & (arrays["memory_tokens"] > 0)
        if not known.any():
            return
        inputs = features[rows][index[known]][:, 1:]
        wanted = np.log(arrays["memory_tokens"][known])
        middle = wanted.mean()
        curve = inputs.T @ inputs + _LENGTH_RIDGE * np.eye(inputs.shape[1])
        weight = np.linalg.solve(curve, inputs.T @ (wanted - middle))
        low, high = wanted.min(), wanted.max()
        arrays["tokens"] = np.exp(np.clip(middle + features[:, 1:] @ weight, low, high))

    def _judge(self, outcome: Outcome) -> None:
        """How fast evidence fades: as fast as foretells best what came out of prompts that had been
        tried before.

        Not as fast as makes them surprise as much as they should: that runs away. A forecast that
        forgets surprises more, and would forget more for it.
        """
        arrays, scalars = self._arrays, self._scalars
        again = np.isin(outcome.prompt_Q, arrays["memory_prompt"])  # it forgets the oldest groups
        if not again.any():
            return
        held = np.isin(arrays["memory_prompt"], outcome.prompt_Q[again])
        rows, index = compact(arrays["memory_prompt"][held].astype(np.int64))
        place = np.searchsorted(rows, outcome.prompt_Q[again])
        trials, failures = np.zeros(len(rows)), np.zeros(len(rows))
        np.add.at(trials, place, outcome.trials_Q[again])
        np.add.at(failures, place, outcome.failures_Q[again])
        kind = arrays["kind_logit"][rows], arrays["kind_variance"][rows]
        said = []
        for way in range(len(scalars["scores"])):
            groups = self._groups(index, held, outcome.step, way)
            ages = shares(groups, _FADES), _HOLDS.tolist()
            said.append(
                foretold(*kind, groups, self._shift(groups, rows), *ages, (trials, failures))
            )
        belief = _BELIEF_MEMORY * np.array(scalars["scores"]) + np.array(said)
        scalars["scores"] = (belief - belief.max()).tolist()
        weight = np.exp(scalars["scores"] - _DOUBT)
        scalars["way"] = int(np.argmax(weight.sum(axis=(1, 2))))
        weight = weight[scalars["way"]] / weight[scalars["way"]].sum()
        scalars["fade"] = float(np.exp(weight.sum(axis=1) @ np.log(_FADES)))
        scalars["hold"] = float(np.exp(weight.sum(axis=0) @ np.log(_HOLDS)))

    # ---- state ----

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore; what was read and remembered has sizes of its own."""
        older = {name: array for name, array in state["arrays"].items() if name != "own"}
        state = {**state, "arrays": older}  # it once held the mode of every own logit
        for name, array in older.items():
            if name in self._arrays and (
                name.startswith(("memory_", "map_")) or name in self._measures
            ):
                self._arrays[name] = np.zeros_like(array)
        super().load_state_dict(state)
        spread = self._scalars["spread"]  # of before there was a bound
        self._scalars["spread"] = {name: min(value, _MOST) for name, value in spread.items()}


def _belief(spread: Mapping[str, float]) -> float:
    """Log prior of the variances: log-normal around the first ones."""
    return -0.5 * sum(
        (math.log(spread[name] / first) / _BELIEF) ** 2 for name, first in _FIRST.items()
    )
