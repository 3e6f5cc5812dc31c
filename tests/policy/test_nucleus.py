"""The nucleus of a large vocabulary, from its most likely tokens, against the whole row sorted."""

from __future__ import annotations

import pytest
import torch
from given_tokens import sampling_logprob

from dare_decoder import sampling
from dare_decoder.sampling import keep_nucleus

VOCABULARY = 20_000


def rows_of(*spreads: float, seed: int = 0) -> torch.Tensor:
    """A row for each spread: 0.1 is flat, 30 has a few likely tokens."""
    source = torch.Generator().manual_seed(seed)
    return torch.tensor(spreads)[:, None] * torch.randn(len(spreads), VOCABULARY, generator=source)


@pytest.fixture
def sorted_whole(monkeypatch):
    """How many rows were sorted whole, call by call."""
    counts = []
    real = sampling._edge_of_all

    def count(scaled, top_p):
        counts.append(len(scaled))
        return real(scaled, top_p)

    monkeypatch.setattr(sampling, "_edge_of_all", count)
    return counts


def by_sorting(scaled: torch.Tensor, top_p: float, top_k: int, monkeypatch) -> torch.Tensor:
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "_FEW", VOCABULARY)
        return keep_nucleus(scaled, top_p, top_k)


def agree(found: torch.Tensor, expected: torch.Tensor, scaled: torch.Tensor, top_p: float) -> bool:
    """Equal, but for tokens with as good as top_p before them: there rounding decides."""
    for one, other, row in zip(found, expected, scaled, strict=True):
        for value in row[one.isfinite() != other.isfinite()].unique():
            before = row.double().softmax(-1)[row > value].sum()
            if abs(before - top_p) > 1e-6:
                return False
    both = found.isfinite() & expected.isfinite()
    return torch.equal(found[both], scaled[both]) and torch.equal(expected[both], scaled[both])


@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.95, 0.999, 0.9999])
@pytest.mark.parametrize("top_k", [0, 20, 1000])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_the_nucleus_of_the_whole_row(monkeypatch, top_p, top_k, seed):
    scaled = rows_of(0.1, 1.0, 30.0, 3.0, 5.0, 8.0, 0.0, 12.0, seed=seed)
    expected = by_sorting(scaled, top_p, top_k, monkeypatch)
    if top_k:
        scaled = keep_nucleus(scaled, 1.0, top_k)
    assert agree(keep_nucleus(scaled, top_p, top_k), expected, scaled, top_p)


def test_only_rows_that_fall_short_are_sorted_whole(sorted_whole):
    keep_nucleus(rows_of(30.0, 0.1, 20.0, 1.0, 25.0), 0.95, 0)
    keep_nucleus(rows_of(30.0, 20.0), 0.95, 0)
    keep_nucleus(rows_of(0.1, 1.0), 0.95, 100)  # top-k leaves fewer than are looked at
    assert sorted_whole == [2]


def test_a_row_has_the_same_nucleus_in_every_batch():
    scaled = rows_of(30.0, 0.1, 5.0, 1.0, 12.0)
    together = keep_nucleus(scaled, 0.95, 0)
    for place, row in enumerate(scaled):
        assert torch.equal(keep_nucleus(row[None], 0.95, 0)[0], together[place])


@pytest.mark.parametrize("tied", [2, 400, VOCABULARY])
def test_all_that_tie_with_the_last_are_inside(sorted_whole, tied):
    scaled = torch.full((2, VOCABULARY), -60.0)
    scaled[:, :tied] = 0.0
    scaled[1, 0] = 10.0  # 98 % of the mass, or less: the others are needed, and tie
    top_p = 0.3 + 0.7 * float(scaled[1].softmax(-1)[0])
    kept = keep_nucleus(scaled, top_p, 0)
    assert torch.equal(kept.isfinite(), scaled > -60.0)
    assert bool(sorted_whole) == (tied > 2)


def test_ties_beyond_the_tokens_looked_at_are_inside_too(sorted_whole):
    scaled = torch.full((1, VOCABULARY), -60.0)
    scaled[0, :1000] = 0.0
    scaled[0, 0] = 10.0
    top_p = float(scaled.softmax(-1)[0, 0]) + 1e-3  # a few of those that tie would do
    assert keep_nucleus(scaled, top_p, 0).isfinite().sum() == 1000
    assert sorted_whole == []


def test_a_small_vocabulary_is_sorted_whole_as_ever(sorted_whole):
    keep_nucleus(rows_of(30.0, 5.0)[:, : 16 * sampling._FEW], 0.95, 0)
    assert sorted_whole == [2]


def test_what_is_kept_is_what_is_scored():
    logits = rows_of(30.0, 0.1, 5.0)
    kept = keep_nucleus(logits / 0.7, 0.9, 0)
    for row, inside in zip(logits, kept.isfinite(), strict=True):
        tokens = torch.cat([inside.nonzero()[:3, 0], (~inside).nonzero()[:3, 0]])
        found = sampling_logprob(row.expand(len(tokens), -1), tokens, 0.7, 0.9)
        assert torch.equal(found.isfinite(), inside[tokens])
