"""Ragged sequences as batches: nothing lost, little padding, the same scores."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from dare.policy.score import batch_logprobs, score
from dare_decoder import Sampling
from dare_decoder.batching import bucket, fill, pack, pad

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=200)


@given(lengths=LENGTHS, limit=st.sampled_from([64, 512, 4096]))
def test_every_row_is_in_one_batch_within_the_limit(lengths: list[int], limit: int) -> None:
    sizes = np.array(lengths)
    batches = bucket(sizes, limit)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * sizes[rows].max() <= limit
    longest = [int(sizes[rows].max()) for rows in batches]
    assert longest == sorted(longest, reverse=True)


def test_padding_stays_small_without_tiny_batches() -> None:
    sizes = np.random.default_rng(0).integers(20, 120, 2000)
    batches = bucket(sizes, 16384)
    padded = [len(rows) * int(sizes[rows].max()) for rows in batches]
    assert sum(padded) < 1.15 * sizes.sum()
    assert min(padded[:-1]) >= 16384 / 8


@pytest.mark.parametrize("response", [0, 1, 9])
def test_a_response_follows_its_prompt_at_once(response: int) -> None:
    prompts = [np.arange(1, 6), np.arange(1, 3)]
    responses = [np.full(3, 7), np.full(response, 8)]
    batch = pad(prompts, responses, np.array([1, 0]), pad_id=0)
    assert batch.input_ids.shape[1] == max(8, 2 + response)
    assert batch.input_ids[0].tolist()[: 2 + response] == [1, 2] + [8] * response
    assert batch.input_ids[1].tolist()[:8] == [1, 2, 3, 4, 5, 7, 7, 7]
    assert batch.targets.tolist() == [8] * response + [7] * 3


@given(lengths=LENGTHS, limit=st.sampled_from([64, 512, 4096]))
def test_packed_batches_are_full_up_to_the_next_row(lengths: list[int], limit: int) -> None:
    sizes = np.array(lengths)
    batches = fill(sizes, limit)
    assert np.concatenate(batches).tolist() == np.argsort(-sizes, kind="stable").tolist()
    for rows, following in zip(batches, [*batches[1:], None], strict=True):
        assert len(rows) == 1 or sizes[rows].sum() <= limit
        if following is not None:
            assert sizes[rows].sum() + sizes[following[0]] > limit


def test_no_rows_are_no_batches() -> None:
    assert fill(np.empty(0, np.int64), 10) == bucket(np.empty(0, np.int64), 10) == []


RAGGED = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=6)


@given(sizes=RAGGED, packed=st.booleans(), seed=st.integers(0, 99))
def test_every_response_token_is_predicted_by_the_one_before_it(
    sizes: list[tuple[int, int]], packed: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(1, 1000, size) for size, _ in sizes]
    responses = [rng.integers(1, 1000, size) for _, size in sizes]
    rows = rng.permutation(len(sizes))
    batch = pack(prompts, responses, rows) if packed else pad(prompts, responses, rows, 0)
    whole = [np.concatenate([prompts[row], responses[row]]) for row in rows]
    assert batch.packed is packed
    assert batch.edges.dtype == torch.int32
    assert batch.edges.tolist() == [0, *np.cumsum([len(ids) for ids in whole])]
    assert batch.longest == max(len(ids) for ids in whole)
    assert batch.targets.tolist() == np.concatenate([responses[row] for row in rows]).tolist()
    flat = batch.input_ids.flatten()
    assert flat[batch.predicting + 1].tolist() == batch.targets.tolist()
    before = [ids[len(prompts[row]) - 1 : -1] for row, ids in zip(rows, whole, strict=True)]
    assert flat[batch.predicting].tolist() == np.concatenate(before).tolist()
    if batch.position_ids is not None:
        assert flat.tolist() == np.concatenate(whole).tolist()
        places = np.concatenate([np.arange(len(ids)) for ids in whole])
        assert batch.position_ids.tolist() == [places.tolist()]
    else:
        held = batch.padding_mask()
        assert held.sum(1).tolist() == [len(ids) for ids in whole]
        assert batch.input_ids[held.bool()].tolist() == np.concatenate(whole).tolist()
        assert not batch.input_ids[~held.bool()].any()


@pytest.mark.parametrize("plain", [True, False])
def test_neighbours_and_padding_change_no_score(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dare.policy.score.has_plain_head", lambda model: plain)
    model = tiny.policy()
    rng = np.random.default_rng(1)
    prompts = [rng.integers(4, 20, size) for size in (3, 30, 11, 2, 6)]
    responses = [rng.integers(4, 20, size) for size in (25, 2, 9, 1, 0)]
    together, _ = batch_logprobs(model, pad(prompts, responses, np.arange(5), pad_id=0), 0.7)
    alone = []
    for row in range(5):  # by hand: one sequence, no padding, the definition
        ids = torch.tensor(np.concatenate([prompts[row], responses[row]]))[None]
        found = torch.log_softmax(model(input_ids=ids).logits[0] / 0.7, -1)
        place = torch.arange(len(prompts[row]) - 1, ids.shape[1] - 1)
        alone.append(found[place, ids[0, len(prompts[row]) :]])
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)
    scored = score(model, prompts, responses, Sampling(0.7, 1.0), pad_id=0, max_batch_tokens=64)
    assert np.allclose(scored.logprobs, torch.cat(alone).detach().numpy(), atol=1e-5)
