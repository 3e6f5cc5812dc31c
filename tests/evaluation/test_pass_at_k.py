"""pass@k is what enumeration says, to the last digit that floats have."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from dare.errors import InvalidInput
from dare.evaluation.intervals import pass_at_k


def enumerated(n: int, c: int, k: int) -> Fraction:
    """Of all ways to take k of n responses, the share that takes one of the c right ones."""
    ways = list(combinations(range(n), k))
    return Fraction(sum(any(place < c for place in way) for way in ways), len(ways))


def test_it_is_the_enumeration() -> None:
    for n in range(1, 10):
        right = np.arange(n + 1)
        found = pass_at_k(np.full(n + 1, n), right, n)
        for c in range(n + 1):
            for k in range(1, n + 1):
                assert found[c, k - 1] == pytest.approx(float(enumerated(n, c, k)), abs=1e-15)


def test_it_is_exact_for_hundreds_of_samples() -> None:
    for n in (64, 100, 333, 1024):
        right = np.arange(n + 1)
        found = pass_at_k(np.full(n + 1, n), right, 64)
        for c in (0, 1, 2, n // 3, n - 64, n - 1, n):
            for k in (1, 2, 7, 32, 64):
                exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
                assert found[c, k - 1] == pytest.approx(float(exact), rel=1e-12, abs=1e-13)


def test_it_neither_overflows_nor_cancels() -> None:
    found = pass_at_k(np.array([10**6, 10**6]), np.array([1, 10**6]), 64)
    assert found[0, 63] == pytest.approx(64e-6, rel=1e-9)
    assert found[1].tolist() == [1.0] * 64


def test_it_is_the_mean_over_draws_without_bias() -> None:
    """Estimates from 8 of 64 responses average to pass@k of the 64."""
    rng = np.random.default_rng(0)
    pool = np.zeros(64, bool)
    pool[:20] = True
    right = np.array([rng.permutation(pool)[:8].sum() for _ in range(20_000)])
    mean = pass_at_k(np.full(len(right), 8), right, 8).mean(axis=0)
    exact = pass_at_k(np.array([64]), np.array([20]), 8)[0]
    assert mean == pytest.approx(exact, abs=0.01)


def test_too_few_samples_are_no_number() -> None:
    found = pass_at_k(np.array([2, 0, 4]), np.array([1, 0, 0]), 4)
    assert np.isnan(found).sum(axis=1).tolist() == [2, 4, 0]


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(InvalidInput, match="right_P"):
        pass_at_k(np.array([4]), np.array([5]), 2)
    with pytest.raises(InvalidInput, match="k = 0"):
        pass_at_k(np.array([4]), np.array([2]), 0)
