"""Cold start: interpolation from a reference set, and its temperature."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from worlds import examples

from dare import InvalidInput
from dare.curriculum.coldstart import (
    check_embeddings,
    choose_references,
    fit_temperature,
    interpolate,
    resolve_temperature,
)


@given(st.integers(0, 9999), st.integers(1, 6), st.integers(1, 8), st.floats(0.01, 50))
@examples(80)
def test_interpolation_is_the_papers_sum(seed: int, n: int, h: int, temperature: float) -> None:
    rng = np.random.default_rng(seed)
    query, reference = rng.normal(size=(5, h)), rng.normal(size=(n, h))
    rate = rng.random(n)
    found = interpolate(query, reference, rate, temperature)
    for q in range(5):
        dots = [sum(query[q, j] * reference[i, j] for j in range(h)) for i in range(n)]
        top = max(dots)
        parts = [math.exp((dot - top) / temperature) for dot in dots]
        expected = sum(p * d for p, d in zip(parts, rate, strict=True)) / sum(parts)
        assert found[q] == pytest.approx(expected, abs=1e-9)


def test_many_queries_are_cut_into_chunks_without_a_seam() -> None:
    rng = np.random.default_rng(0)
    query, reference, rate = rng.normal(size=(20_000, 3)), rng.normal(size=(4, 3)), rng.random(4)
    whole = interpolate(query, reference, rate, 1.3)
    parts = [
        interpolate(query[i : i + 1], reference, rate, 1.3)[0] for i in (0, 8191, 8192, 19_999)
    ]
    np.testing.assert_allclose(whole[[0, 8191, 8192, 19_999]], parts)


def test_large_norms_overflow_nothing() -> None:
    reference = np.array([[1e6, 0.0], [0.0, 1e6]])
    found = interpolate(reference, reference, np.array([0.2, 0.9]), 1.0)
    np.testing.assert_allclose(found, [0.2, 0.9])


def test_settings_become_numbers() -> None:
    z, rate = np.random.default_rng(0).normal(size=(30, 49)), np.linspace(0, 1, 30)
    assert resolve_temperature("paper", z, rate) == 7.0
    assert resolve_temperature(2.5, z, rate) == 2.5
    assert resolve_temperature("auto", z, rate) == fit_temperature(z, rate)


def synthetic(seed: int, scale: float) -> tuple[np.ndarray, ...]:
    """Difficulty is a function of the embedding, seen through 8 rollouts on the references."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(12, 24))
    level = rng.random(12)
    kind = rng.integers(0, 12, 856)
    z = centre[kind] + 0.3 * rng.normal(size=(856, 24))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    d = np.clip(level[kind] + 0.05 * rng.normal(size=856), 0, 1)
    return (
        (scale * z[:256]).astype(np.float32),
        rng.binomial(8, d[:256]) / 8,
        scale * z[256:],
        d[256:],
    )


def held_out_error(data: tuple[np.ndarray, ...], temperature: float) -> float:
    reference, rate, query, d = data
    return float(np.mean((interpolate(query, reference, rate, temperature) - d) ** 2))


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_chosen_temperature_recovers_the_signal_at_any_norm(seed: int, scale: float) -> None:
    data = synthetic(seed, scale)
    auto = held_out_error(data, fit_temperature(*data[:2]))
    uniform = held_out_error(data, math.inf)
    assert auto < 0.5 * uniform
    assert auto < held_out_error(data, math.sqrt(24))
    unit = synthetic(seed, 1.0)
    assert auto == pytest.approx(held_out_error(unit, fit_temperature(*unit[:2])), rel=0.02)


def test_the_chosen_temperature_has_the_least_leave_one_out_error() -> None:
    reference, rate, _, _ = synthetic(3, 1.0)
    reference, rate = reference[:60], rate[:60]

    def leave_one_out(temperature: float) -> float:
        errors = []
        for i in range(60):
            others = [j for j in range(60) if j != i]
            told = interpolate(reference[i : i + 1], reference[others], rate[others], temperature)
            errors.append((told[0] - rate[i]) ** 2)
        return float(np.mean(errors))

    chosen = fit_temperature(reference, rate)
    best = leave_one_out(chosen)
    for factor in (0.02, 0.2, 0.5, 0.8, 1.25, 2.0, 5.0, 50.0):
        assert best <= leave_one_out(chosen * factor) * 1.001
    assert best <= leave_one_out(math.inf) * 1.001


@pytest.mark.parametrize("width", [1, 7, 64, 1536])
def test_identical_embeddings_give_the_mean(width: int) -> None:
    rng = np.random.default_rng(width)
    z = np.repeat(rng.normal(size=(1, width)), 300, axis=0).astype(np.float32)
    rate = rng.random(128)
    temperature = fit_temperature(z[:128], rate)
    np.testing.assert_allclose(interpolate(z, z[:128], rate, temperature), rate.mean(), rtol=1e-6)


def test_embeddings_without_signal_do_little_worse_than_the_mean() -> None:
    rng = np.random.default_rng(0)
    z, rate = rng.normal(size=(256, 32)).astype(np.float32), rng.random(256)
    query, d = rng.normal(size=(500, 32)), rng.random(500)
    error = np.mean((interpolate(query, z, rate, fit_temperature(z, rate)) - d) ** 2)
    assert error < 1.1 * np.mean((rate.mean() - d) ** 2)


def test_references_are_a_uniform_choice_without_repeats() -> None:
    counts: Counter[int] = Counter()
    for seed in range(600):
        rows = choose_references(20, 5, np.random.default_rng(seed)).tolist()
        assert rows == sorted(set(rows))
        assert len(rows) == 5
        counts.update(rows)
    assert stats.chisquare([counts[i] for i in range(20)]).pvalue > 1e-3
    assert choose_references(3, 256, np.random.default_rng(0)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        (np.zeros((3, 2)), "embeddings"),
        (np.zeros(4), "embeddings"),
        ([[0.0], [1.0], [np.nan], [2.0]], "embeddings[2]"),
        ([[0.0], [np.inf], [0.0], [2.0]], "embeddings[1]"),
        ([["a"], ["b"], ["c"], ["d"]], "embeddings"),
    ],
)
def test_bad_embeddings_are_refused(values: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        check_embeddings(values, 4)
    assert error.value.field == field
