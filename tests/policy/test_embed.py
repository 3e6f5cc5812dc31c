"""Prompts as the policy sees them: the mean of the last states, and one state of a middle layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

import tiny
from dare.policy.embed import STATE_DEPTH, embed_prompts, prompt_states

PROMPTS = [tiny.encode("+".join(str(d) for d in range(n + 1)) + "=") for n in (3, 0, 7, 1, 5)]


@pytest.fixture(scope="module")
def model():
    return tiny.policy()


@torch.no_grad()
def plain(model):
    states = [model.model(input_ids=torch.from_numpy(p)[None]).last_hidden_state for p in PROMPTS]
    return np.stack([state[0].mean(0).numpy() for state in states])


@pytest.mark.parametrize("max_batch_tokens", [1, 40, 16384])
def test_a_row_is_the_mean_of_its_own_states_whatever_the_batch(model, max_batch_tokens):
    found = embed_prompts(model, PROMPTS, pad_id=tiny.PAD, max_batch_tokens=max_batch_tokens)
    assert found.dtype == np.float32
    assert np.abs(found - plain(model)).max() < 1e-5


def test_adapters_take_part(model):
    expected = plain(model)
    wrapped = get_peft_model(tiny.policy(), LoraConfig(r=2, target_modules=["q_proj"]))
    fresh = embed_prompts(wrapped, PROMPTS, pad_id=tiny.PAD)
    assert np.abs(fresh - expected).max() < 1e-5
    with torch.no_grad():
        for name, value in wrapped.named_parameters():
            if "lora_B" in name:
                value.fill_(0.5)
    moved = embed_prompts(wrapped, PROMPTS, pad_id=tiny.PAD)
    assert np.abs(moved - expected).max() > 1e-3


def test_bfloat16_models_give_float32_rows():
    found = embed_prompts(tiny.policy(torch.bfloat16), PROMPTS, pad_id=tiny.PAD)
    assert found.dtype == np.float32
    assert np.abs(found - plain(tiny.policy())).max() < 0.1


def test_progress_counts_every_prompt_and_the_mode_is_put_back(model):
    counted = []
    model.train()
    try:
        embed_prompts(model, PROMPTS, pad_id=tiny.PAD, max_batch_tokens=40, progress=counted.append)
        assert model.training
    finally:
        model.eval()
    assert sum(counted) == len(PROMPTS)


@pytest.mark.parametrize("max_batch_tokens", [1, 40, 16384])
@torch.no_grad()
def test_a_state_is_the_last_tokens_at_a_middle_layer(model, max_batch_tokens):
    found = prompt_states(model, PROMPTS, pad_id=tiny.PAD, max_batch_tokens=max_batch_tokens)
    layer = round(STATE_DEPTH * model.config.num_hidden_layers)
    for prompt, row in zip(PROMPTS, found, strict=True):
        every = model(input_ids=torch.from_numpy(prompt)[None], output_hidden_states=True)
        assert np.abs(row - every.hidden_states[layer][0, -1].numpy()).max() < 1e-5
