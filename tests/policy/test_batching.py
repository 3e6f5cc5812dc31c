"""Ragged sequences as padded batches: nothing lost, little padding, the same scores."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from dare.policy.batching import bucket, pad
from dare.policy.score import Sampling, batch_logprobs, score

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
