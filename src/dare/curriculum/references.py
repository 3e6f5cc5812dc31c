"""ColdStart: the reference set over the first steps, and what it says of all other prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from dare.config import ColdStartConfig
from dare.curriculum.arrays import Array, keyed_rng
from dare.curriculum.coldstart import choose_references, interpolate, resolve_temperature
from dare.curriculum.estimators.base import Outcome
from dare.errors import require


class ColdStart:
    """The reference set: which of it is still to be rolled out, and what came of the rest."""

    def __init__(
        self, count: int, config: ColdStartConfig, seed: int, embeddings: Array | None
    ) -> None:
        self._count, self._config, self._embeddings = count, config, embeddings
        rng = keyed_rng(seed, 0, "references")
        self._references = choose_references(count, config.references, rng)
        self.planned = 0
        """References that were in a plan so far, whether or not an outcome came back."""
        self.arrays: dict[str, Array] = {
            "prompt": np.empty(0, np.int64),
            "trials": np.empty(0),
            "failures": np.empty(0),
        }

    @property
    def waiting(self) -> Array:
        """References that no plan had yet."""
        return self._references[self.planned :]

    @property
    def finished(self) -> bool:
        """Whether every reference has been in a plan."""
        return not len(self.waiting)

    @property
    def rates(self) -> tuple[Array, Array]:
        """Rows of the references that came out, and the failure rate of each."""
        return self.arrays["prompt"], self.arrays["failures"] / self.arrays["trials"]

    def observe(self, planned_P: Array, outcome: Outcome) -> None:
        """A plan with some of the references has come out."""
        due = np.intersect1d(self.waiting, planned_P)
        mine = np.isin(outcome.prompt_Q, due)
        for name, new in (
            ("prompt", outcome.prompt_Q),
            ("trials", outcome.trials_Q),
            ("failures", outcome.failures_Q),
        ):
            self.arrays[name] = np.concatenate([self.arrays[name], new[mine]])
        self.planned += len(due)

    def prior(self, temperature: float | Literal["auto", "paper"] | None = None) -> Array:
        """What the references so far say of every prompt: by similarity, or else their mean."""
        rows, rate = self.rates
        if self._embeddings is None or len(rate) < 2:
            return np.full(self._count, float(rate.mean()) if len(rate) else 0.5)
        near = self._embeddings[rows]
        setting = self._config.temperature if temperature is None else temperature
        temperature = resolve_temperature(setting, near, rate)
        return interpolate(self._embeddings, near, rate, temperature)

    def load(self, arrays: Mapping[str, Array], planned: int, *, finished: bool) -> None:
        """Continue from a saved state. A finished one stays so, whatever the data."""
        wanted = sorted(self.arrays)
        fix = f"expected {wanted}; the checkpoint was written by another version"
        require(sorted(arrays) == wanted, "cold start state", sorted(arrays), fix)
        self.arrays = {name: np.array(value) for name, value in arrays.items()}
        self.planned = len(self._references) if finished else planned
