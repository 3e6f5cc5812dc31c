"""Attention with shared heads against plain attention, and the switch to it while decoding."""

from __future__ import annotations

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

import tiny
from dare.policy import attention
from dare.policy.attention import GROUPED, attend_grouped, grouped_attention
from dare.policy.decode import GrowingDecoder, StaticDecoder, as_is, prefill

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def llama():
    return tiny.blank(**HEADS)


def qwen():
    settings = {name: getattr(tiny.blank().config, name) for name in ("vocab_size", "hidden_size")}
    config = Qwen2Config(**settings, **HEADS, intermediate_size=64, num_hidden_layers=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config).eval()


def adapted():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lora = LoraConfig(target_modules=["q_proj", "k_proj"], init_lora_weights=False)
        return get_peft_model(llama(), lora).eval()


def numbers(seed: int = 0, dtype: torch.dtype = torch.float32):
    """Queries of six heads, keys and values of two, and a mask that hides about half."""
    source = torch.Generator().manual_seed(seed)
    query = torch.randn(5, 6, 1, 8, generator=source).to(dtype)
    key, value = torch.randn(2, 5, 2, 16, 8, generator=source).to(dtype)
    mask = torch.rand(5, 1, 1, 16, generator=source) < 0.5
    mask[..., 3] = True
    return query, key, value, mask


def plain(query, key, value, mask, scaling):
    """Every head with keys and values of its own."""
    key, value = key.repeat_interleave(3, 1).double(), value.repeat_interleave(3, 1).double()
    scores = (query.double() @ key.transpose(-1, -2)) * scaling
    found = scores.masked_fill(~mask, -math.inf).softmax(-1) @ value
    return found.transpose(1, 2)


@pytest.fixture
def used(monkeypatch):
    """How often the grouped product was computed, rather than sdpa."""
    calls = []
    real = attention._grouped
    monkeypatch.setattr(attention, "_grouped", lambda *args: calls.append(1) or real(*args))
    return calls


@pytest.mark.parametrize("scaling", [None, 0.1, 2.0])
def test_it_is_attention_with_the_shared_heads_written_out(used, scaling):
    tensors = numbers()
    found, weights = attend_grouped(torch.nn.Module(), *tensors, scaling=scaling)
    expected = plain(*tensors, 8**-0.5 if scaling is None else scaling)
    assert len(used) == 1
    assert weights is None
    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_hidden_places_have_no_influence_at_all():
    query, key, value, mask = numbers()
    hidden = ~mask[:, 0, 0, :, None].expand(5, 16, 8)[:, None].expand_as(key)
    found, _ = attend_grouped(torch.nn.Module(), query, key, value, mask)
    other, _ = attend_grouped(
        torch.nn.Module(), query, key.masked_fill(hidden, 50), value.masked_fill(hidden, -9e9), mask
    )
    assert torch.equal(found, other)


def test_a_row_that_may_see_nothing_stays_finite_and_leaves_the_others_alone():
    query, key, value, mask = numbers()
    found, _ = attend_grouped(torch.nn.Module(), query, key, value, mask)
    mask[2] = False
    blind, _ = attend_grouped(torch.nn.Module(), query, key, value, mask)
    others = torch.tensor([0, 1, 3, 4])
    assert blind.isfinite().all()
    assert torch.equal(blind[others], found[others])


class Grouped(torch.nn.Module):
    """All that sdpa asks of a layer."""

    num_key_value_groups = 3


@pytest.mark.parametrize(
    "asked",
    [
        {"sliding_window": 4},
        {"s_aux": torch.zeros(6)},
        {"position_bias": torch.ones(1, 6, 1, 16)},
        {"something_new": 1.0},
        {"dropout": 0.5},
    ],
)
def test_whatever_it_does_not_know_is_left_to_sdpa(used, asked):
    with torch.random.fork_rng():
        attend_grouped(Grouped(), *numbers(), **asked)
    assert used == []


def test_a_soft_cap_is_never_dropped(used, monkeypatch):
    monkeypatch.setattr(attention, "AttentionInterface", lambda: {"sdpa": lambda *_, **rest: rest})
    assert attend_grouped(Grouped(), *numbers(), softcap=30.0)["softcap"] == 30.0
    assert used == []


def test_other_shapes_masks_and_precisions_are_left_to_sdpa(used):
    query, key, value, mask = numbers()
    several = query.expand(5, 6, 2, 8)
    own = key.repeat_interleave(3, 1)
    attend_grouped(Grouped(), several, key, value, mask.expand(5, 1, 2, 16))
    attend_grouped(Grouped(), query, key, value, torch.zeros(mask.shape))
    attend_grouped(Grouped(), query, key, value, None)
    attend_grouped(Grouped(), *numbers(dtype=torch.bfloat16))
    attend_grouped(torch.nn.Module(), query, own, own, mask)
    assert used == []


def decoders(model):
    """The same seven rows in a growing cache, with sdpa, and in a fixed one."""
    ids = torch.tensor([[tiny.PAD, tiny.PAD, 5, 6], [7, 8, 9, 10], [tiny.PAD, 11, 12, 13]])
    mask = (ids != tiny.PAD).long()
    copies = torch.tensor([0, 0, 1, 1, 1, 2, 2])
    _, cache = prefill(model, ids, mask)
    fixed = StaticDecoder(model, cache, mask, copies, 16, as_is)
    return GrowingDecoder(model, cache, mask, copies), fixed


@pytest.mark.parametrize("make", [llama, qwen, adapted])
def test_a_fixed_cache_has_the_logits_of_sdpa_whoever_has_ended(used, make):
    model = make()
    source = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        pair = decoders(model)
        left = 7
        for step in range(9):
            if step in (2, 4, 6):  # first without, then with new buffers for those that go on
                rows = {2: [0, 2, 3, 5, 6], 4: [1, 3], 6: [0]}[step]
                left = len(rows)
                for decoder in pair:
                    decoder.keep(torch.tensor(rows))
            token = torch.randint(3, 20, (left,), generator=source)
            expected = pair[0].advance(token)
            before = len(used)
            found = pair[1].advance(token)
            assert len(used) == before + 2  # one for each layer, none for the growing cache
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            assert model.config._attn_implementation == "sdpa"
    assert len(used) == 18


@pytest.mark.parametrize("make", [llama, adapted])
def test_sdpa_is_back_after_an_error(make):
    model = make()

    def fail(*_):
        assert model.config._attn_implementation == GROUPED
        raise ArithmeticError

    with torch.inference_mode():
        _, fixed = decoders(model)
        model.get_input_embeddings().register_forward_hook(fail)
        with pytest.raises(ArithmeticError):
            fixed.advance(torch.full((7,), 5))
    assert model.config._attn_implementation == "sdpa"


def test_a_model_with_another_attention_keeps_it(used):
    model = llama()
    model.set_attn_implementation("eager")
    with grouped_attention(model):
        assert model.config._attn_implementation == "eager"
    assert model.config._attn_implementation == "eager"


def test_masks_are_made_as_for_sdpa():
    model = llama()
    ids = torch.tensor([[tiny.PAD, 5, 6, 7], [8, 9, 10, 11]])
    mask = (ids != tiny.PAD).long()
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=mask).logits
        with grouped_attention(model):
            found = model(input_ids=ids, attention_mask=mask).logits
    assert torch.equal(found, expected)
