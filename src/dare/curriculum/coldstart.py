"""Cold start: difficulty of unseen prompts from a reference set in the first steps (METHOD 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from dare.config import ColdStartConfig
from dare.curriculum.arrays import Array, keyed_rng, to_numpy
from dare.curriculum.rollouts import Outcome
from dare.errors import InvalidInput, require

_CHUNK = 8192


def choose_references(count: int, references: int, rng: np.random.Generator) -> Array:
    """Rows of the reference set: uniform, without repeats, at most all prompts."""
    size = min(references, count)
    return np.sort(rng.choice(count, size=size, replace=False, shuffle=False))


def check_embeddings(values: Any, count: int) -> Array:
    """One finite embedding a prompt, or an error that names the row."""
    embeddings = to_numpy(values, np.float32, "embeddings")
    good = embeddings.ndim == 2 and len(embeddings) == count
    require(good, "embeddings", embeddings.shape, f"must be {count} rows, one a prompt")
    broken = ~np.isfinite(embeddings).all(axis=1)
    if broken.any():
        row = int(np.flatnonzero(broken)[0])
        raise InvalidInput(f"embeddings[{row}]", "nan or inf", "must be finite")
    return embeddings


def interpolate(
    query_QH: Array, reference_NH: Array, difficulty_N: Array, temperature: float
) -> Array:
    """Softmax over references of z_q . z_i / temperature, weighted sum of their difficulties.

    The paper's temperature is sqrt(h). Chunked: a P x N matrix never exists.
    """
    rates = np.asarray(difficulty_N, dtype=np.float64)
    result = np.empty(len(query_QH))
    for start in range(0, len(query_QH), _CHUNK):
        part = slice(start, start + _CHUNK)
        weights = _attention(query_QH[part] @ reference_NH.T, temperature)
        result[part] = weights @ rates
    return np.clip(result, 0.0, 1.0)


def fit_temperature(reference_NH: Array, difficulty_N: Array) -> float:
    """Temperature with the least leave-one-out squared error on the reference set.

    A search over a geometric grid that spans nearly one-hot to nearly uniform attention, the
    latter being the mean of all others; no rollouts are needed.
    """
    dots = np.asarray(reference_NH @ reference_NH.T, dtype=np.float64)
    np.fill_diagonal(dots, -np.inf)
    rates = np.asarray(difficulty_N, dtype=np.float64)
    off_diagonal = dots[~np.eye(len(dots), dtype=bool)]
    # Of the spread within a row only: a constant per query drops out of its softmax.
    rows = off_diagonal.reshape(len(dots), -1)
    spread = float(np.mean(rows.std(axis=1)))
    if spread == 0.0:
        return math.inf
    grid = spread * np.geomspace(1e-2, 1e2, 81)
    errors = [float(np.mean((_attention(dots, t) @ rates - rates) ** 2)) for t in grid]
    return float(grid[int(np.argmin(errors))])


def resolve_temperature(
    setting: float | Literal["auto", "paper"], reference_NH: Array, difficulty_N: Array
) -> float:
    """The number behind a `cold_start.temperature` setting."""
    if setting == "paper":
        return math.sqrt(reference_NH.shape[1])
    if setting == "auto":
        return fit_temperature(reference_NH, difficulty_N)
    return float(setting)


def _attention(dots_QN: Array, temperature: float) -> Array:
    scores = np.asarray(dots_QN, dtype=np.float64) / temperature
    if math.isinf(temperature):
        scores = np.where(np.isinf(dots_QN), -np.inf, 0.0)
    scores = scores - scores.max(axis=1, keepdims=True)
    weights: Array = np.exp(scores)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


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
