"""Micro-batches: every row in one of them, with about as many tokens in each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare.training.micro import mini_batches, shares

LENGTHS = st.lists(st.integers(1, 300), max_size=80)


@given(LENGTHS, st.integers(1, 3), st.integers(1, 5), st.booleans())
def test_every_row_is_read_once_in_as_many_passes_on_every_process(
    lengths: list[int], processes: int, count: int, packed: bool
) -> None:
    hands = shares(np.array(lengths, np.int64), processes, count, packed=packed)
    assert [len(hand) for hand in hands] == [count] * processes
    rows = np.concatenate([rows for hand in hands for rows in hand])
    assert sorted(rows.tolist()) == list(range(len(lengths)))


@given(LENGTHS, st.integers(1, 3), st.integers(1, 5))
def test_packed_micro_batches_differ_by_less_than_a_row(
    lengths: list[int], processes: int, count: int
) -> None:
    sizes = np.array(lengths, np.int64)
    hands = shares(sizes, processes, count, packed=True)
    tokens = [int(sizes[rows].sum()) for hand in hands for rows in hand]
    assert max(tokens) - min(tokens) <= max(lengths, default=0)


@given(LENGTHS, st.integers(1, 5))
def test_padded_stretches_hold_like_lengths_and_like_tokens(lengths: list[int], count: int) -> None:
    sizes = np.array(lengths, np.int64)
    (hand,) = shares(sizes, 1, count)
    along = [int(sizes[row]) for rows in hand for row in rows]
    assert along == sorted(lengths, reverse=True)
    for rows in hand:
        assert abs(sizes[rows].sum() - sizes.sum() / count) <= max(lengths, default=0)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("processes", [1, 2])
def test_lengths_that_differ_much_still_share_tokens_evenly(packed: bool, processes: int) -> None:
    sizes = np.random.default_rng(0).lognormal(4.0, 1.0, 256).astype(np.int64) + 1
    hands = shares(sizes, processes, 4, packed=packed)
    tokens = np.array([sizes[rows].sum() for hand in hands for rows in hand])
    counts = np.array([len(rows) for hand in hands for rows in hand])
    assert tokens.max() < (1.01 if packed else 1.2) * tokens.mean()
    if not packed:
        assert counts.max() > 3 * counts.min()  # equal counts would have been far from that


# --- mini-batches ---------------------------------------------------------------------------------

GROUPS = st.lists(st.sampled_from([2, 4, 8, 16]), max_size=12)


def dealt(sizes: list[int], count: int, seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    group = np.repeat(np.arange(len(sizes)), sizes)
    group = np.random.default_rng(7).permutation(group)  # rows of a group need not lie together
    return group, mini_batches(np.arange(len(group)), group, count, np.random.default_rng(seed))


@given(GROUPS, st.integers(1, 5))
def test_every_row_is_in_one_mini_batch_and_groups_stay_whole(sizes: list[int], count: int) -> None:
    group, parts = dealt(sizes, count)
    assert len(parts) == count
    assert sorted(np.concatenate(parts).tolist()) == list(range(sum(sizes)))
    if len(sizes) >= count:
        owners = [set(group[part].tolist()) for part in parts]
        assert sum(map(len, owners)) == len(sizes)
        rows = [len(part) for part in parts]
        assert max(rows) - min(rows) <= max(sizes)


@given(st.lists(st.sampled_from([2, 4, 8, 16]), min_size=1, max_size=4), st.integers(2, 5))
def test_groups_are_torn_where_an_update_would_have_nothing(sizes: list[int], count: int) -> None:
    _, parts = dealt(sizes, count)
    assert min(len(part) for part in parts) > 0 or sum(sizes) < count


def test_the_deal_is_the_seeds() -> None:
    sizes = [8] * 8
    _, first = dealt(sizes, 2)
    _, again = dealt(sizes, 2)
    _, other = dealt(sizes, 2, seed=2)
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert not all(np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_without_rows_all_mini_batches_are_empty() -> None:
    assert [len(part) for part in dealt([], 3)[1]] == [0, 0, 0]
