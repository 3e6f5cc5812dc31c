"""Cold start: difficulty of unseen prompts from a small reference set (METHOD 3)."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from dare.curriculum.arrays import Array, to_numpy
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
