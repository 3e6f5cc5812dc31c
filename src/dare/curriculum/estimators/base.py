"""The one protocol of every estimator: observe, refresh, difficulty, state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.rollouts import Outcome
from dare.errors import InvalidInput, require


class Measured(NamedTuple):
    """What a model-backed callable answers: one value a prompt, and what it cost."""

    values: Any
    tokens: int


Measure = Callable[[Array], Measured]

Wanted = Literal["none", "trained", "all"]
"""Whose behaviour log-probs are asked for: nobody's; those of what is trained on, which the update
gives for nothing; those of every plain rollout, also of groups that teach nothing and of probes."""


class Estimator:
    """Base of all estimators: a failure rate per prompt, 0.5 where nothing is known.

    Subclasses override `observe` (new outcomes), `refresh` (the policy has changed; may call a
    model) and, where a read-out is more than an array, `difficulty`. Everything they must
    remember is in `_arrays` (one row a prompt) and `_scalars`.
    """

    needs: frozenset[str] = frozenset()
    """What it asks of a model or the data, by the names in `Services`."""
    generates: bool = False
    """True where `refresh` lets the policy generate: those tokens count as generated."""
    probe_group: int = 8
    """Rollouts of each prompt that `probe` names."""
    uses_prior: bool = True
    """False where unseen prompts have their own rule: no reference set is rolled out then."""
    scores: Wanted = "all"
    """Whose behaviour log-probs the estimate reads. A class that reads none says "none" and spares
    the run a pass over its rollouts."""
    rescores: bool = False
    """True where `refresh` reads the log-probs of buffered rollouts under the policy of now: the
    run then spends `estimator.refresh_share` on them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._arrays: dict[str, Array] = {"difficulty": np.full(count, 0.5)}
        if self.uses_prior:
            self._arrays["prior"] = np.full(count, 0.5)
        self._scalars: dict[str, Any] = {}

    def set_prior(self, prior_P: Array) -> None:
        """Cold-start difficulties of all prompts; ignored by estimators with their own rule.

        A cold start that trains gives a better one after each of its steps. Prompts of which more
        is known by then, those that differ from the last one, keep what they have.
        """
        if self.uses_prior:
            prior = check_rates(prior_P, self.count, "cold start")
            believed = self._arrays["difficulty"]
            untouched = believed == self._arrays["prior"]
            self._arrays["difficulty"] = np.where(untouched, prior, believed)
            self._arrays["prior"] = prior.copy()

    def observe(self, outcome: Outcome) -> None:
        """Learn from one step's outcomes."""

    def read(self, step: int, rng: np.random.Generator, token_budget: int) -> int:
        """Read what the policy of now says of the prompts; returns the tokens that were read."""
        return 0

    def refresh(self, step: int, rng: np.random.Generator) -> int:
        """Bring estimates up to date with the policy; returns the tokens that this cost."""
        return 0

    def probe(self, step: int, rng: np.random.Generator) -> Array | None:
        """Prompts that must be rolled out before this step is planned, or None."""
        return None

    def keep(self, step: int) -> Array | None:
        """Prompts whose probe groups of this step are to be trained on, or None."""
        return None

    def difficulty(self) -> Array:
        """Estimated failure rate of every prompt under the current policy."""
        return self._arrays["difficulty"]

    def median(self) -> Array:
        """What tables show: the read-out nearest to the truth, where draws use another one."""
        return self.difficulty()

    def signal(self) -> Array:
        """What the selector sees; differs from the difficulty where a method ranks otherwise."""
        return self.difficulty()

    def mixed(self, size: int) -> Array:
        """Chance that a group of this size has a right and a wrong rollout."""
        rate = self.difficulty()
        return np.asarray(1.0 - rate**size - (1.0 - rate) ** size)

    def tokens(self) -> Array | None:
        """Tokens that a response to each prompt is expected to take; None where nobody knows."""
        return None

    def sample(self, rng: np.random.Generator) -> Array:
        """A draw from the belief about each difficulty (Thompson); without one, the estimate."""
        return self.difficulty()

    def evidence(self) -> Array:
        """Effective number of rollouts behind each estimate (the ESS for SNIS)."""
        return np.zeros(self.count)

    def metrics(self) -> dict[str, float]:
        """Figures worth a line in the log."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Per-prompt arrays and JSON-able scalars."""
        return {"arrays": dict(self._arrays), "scalars": copy.deepcopy(self._scalars)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore; a state of another estimator or another number of prompts is refused."""
        arrays = {name: np.array(value) for name, value in state["arrays"].items()}
        wanted = sorted(self._arrays)
        fix = f"expected {wanted}; the checkpoint is of another estimator"
        require(sorted(arrays) == wanted, "estimator state", sorted(arrays), fix)
        for name, array in arrays.items():
            size = len(self._arrays[name])
            require(len(array) == size, f"estimator.{name}", len(array), f"must have {size} rows")
        self._arrays, self._scalars = arrays, copy.deepcopy(dict(state["scalars"]))


def check_rates(values: Any, count: int, field: str) -> Array:
    """An array of `count` failure rates, or an error."""
    try:
        rates = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(field, values, f"must be {count} failure rates") from error
    require(rates.shape == (count,), field, rates.shape, f"must be {count} failure rates")
    wrong = ~((rates >= 0) & (rates <= 1))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InvalidInput(f"{field}[{row}]", float(rates[row]), "must be in [0, 1]")
    return rates


def measured(measure: Measure, rows: Array, field: str) -> tuple[Array, int]:
    """Call a model-backed callable and check what it gave."""
    result = measure(rows)
    values = np.asarray(result.values, dtype=np.float64)
    fix = f"must give one value for each of {len(rows)} prompts"
    require(values.shape == rows.shape, field, values.shape, fix)
    return values, int(result.tokens)


def candidates(count: int, limit: int, rng: np.random.Generator) -> Array:
    """All rows, or `limit` of them at random where measuring all would cost too much."""
    if limit == 0 or limit >= count:
        return np.arange(count)
    return np.sort(rng.choice(count, size=limit, replace=False, shuffle=False))
