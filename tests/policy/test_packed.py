"""Sequences packed in one row: the log-probs, gradients and means that they have alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from given_tokens import MODELS, PACKED, PADDED, PROMPTS, RESPONSES, ROWS, TOKENS, far, gradients
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, MistralConfig, MistralForCausalLM

import tiny
from dare.policy.embed import embed_prompts
from dare.policy.score import batch_logprobs, mean_entropy, score
from dare_decoder import Sampling
from dare_decoder import packed_attention as attention
from dare_decoder.batching import Layout, layout_of
from dare_decoder.packed_attention import PACKED as NAME
from dare_decoder.packed_attention import attend_packed, can_pack

SAMPLING = Sampling(0.7, 0.9)


def read(model, layout: Layout, rows=ROWS):
    """Log-probs of the responses at T = 0.7, row after row."""
    return batch_logprobs(model, layout.batch(PROMPTS, RESPONSES, rows), 0.7)[0]


def trained(model, layout: Layout):
    """Log-probs, and the gradient of a sum of them that weights each token differently."""
    model.zero_grad()
    value = read(model, layout)
    (value * torch.linspace(-1.0, 2.0, TOKENS)).sum().backward()
    return value.detach(), {name: grad.clone() for name, grad in gradients(model).items()}


@pytest.mark.parametrize("name", MODELS)
def test_packed_and_padded_have_one_loss_and_gradient(name):
    model = MODELS[name]()
    value, slope = trained(model, PACKED)
    expected, expected_slope = trained(model, PADDED)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, atol=1e-5, rtol=0)
    assert far(slope, expected_slope) < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_each_sequence_is_read_as_if_alone(name):
    model = MODELS[name]()
    together = read(model, PACKED)
    alone = [read(model, PADDED, np.array([row])) for row in ROWS]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_score_entropy_and_embedding_do_not_see_the_layout(name):
    model = MODELS[name]()
    for drawn in (False, True):
        given = {"pad_id": 0, "max_batch_tokens": 40, "drawn": drawn}
        found, expected = [
            score(model, PROMPTS, RESPONSES, SAMPLING, **given, layout=layout)
            for layout in (PACKED, PADDED)
        ]
        assert np.abs(found.logprobs - expected.logprobs).max() < 1e-5
        np.testing.assert_allclose(found.total, expected.total, atol=1e-4)
        assert np.isfinite(found.total).all() == drawn
    entropy = [
        mean_entropy(model, PROMPTS, RESPONSES, 0.7, pad_id=0, max_batch_tokens=40, layout=layout)
        for layout in (PACKED, PADDED)
    ]
    assert np.abs(entropy[0] - entropy[1]).max() < 1e-5
    assert entropy[0][4] == 0.0  # nothing was written
    rows = [
        embed_prompts(model, PROMPTS, pad_id=0, max_batch_tokens=40, layout=layout)
        for layout in (PACKED, PADDED)
    ]
    assert np.abs(rows[0] - rows[1]).max() < 1e-5


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["taught", "shared heads", "adapters"])
def test_layers_that_run_again_attend_as_they_did(name, reentrant):
    model = MODELS[name]()
    plain, plain_slope = trained(model, PACKED)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.train()
    calls = []
    for layer in model.modules():
        if type(layer).__name__ == "LlamaAttention":
            layer.register_forward_pre_hook(lambda *_: calls.append(1))
    value, slope = trained(model, PACKED)
    assert len(calls) == 4  # two layers, forwards and again on the way back
    torch.testing.assert_close(value, plain, atol=1e-6, rtol=0)
    assert far(slope, plain_slope) < 1e-5
    assert model.config._attn_implementation == "sdpa"


def test_two_packed_passes_may_share_one_backward_pass():
    model = MODELS["taught"]()
    _, slope = trained(model, PACKED)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    model.zero_grad()
    weights = torch.linspace(-1.0, 2.0, TOKENS)
    loss = sum((0.5 * weights * read(model, PACKED)).sum() for _ in range(2))
    loss.backward()
    assert far(gradients(model), slope) < 1e-5
    assert model.config._attn_implementation == "sdpa"


def test_the_model_gets_its_attention_back_after_an_error(monkeypatch):
    model = MODELS["taught"]()
    monkeypatch.setattr(attention, "_by_padding", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        read(model, PACKED)
    assert model.config._attn_implementation == "sdpa"
    assert "forward" not in vars(model.lm_head)


def test_a_wrapped_model_is_packed_too():
    model = MODELS["taught"]()

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, **inputs):
            return self.module(**inputs)

    torch.testing.assert_close(read(Wrapper(model), PACKED), read(model, PACKED))


def test_a_distributed_model_is_packed_too(tmp_path):
    model = MODELS["shared heads"]()
    value, slope = trained(model, PACKED)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        model.zero_grad()
        found = read(nn.parallel.DistributedDataParallel(model), PACKED)
        (found * torch.linspace(-1.0, 2.0, TOKENS)).sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(found, value)
    assert far(gradients(model), slope) < 1e-5


def by_hand(query, key, value, edges, scale):
    """One sequence at a time, its keys and values copied out for every query head."""
    copies = query.shape[1] // key.shape[1]
    found = []
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        q, k, v = (states[:, :, start:end] for states in (query, key, value))
        k, v = k.repeat_interleave(copies, 1), v.repeat_interleave(copies, 1)
        found.append(scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale))
    return torch.cat(found, 2).transpose(1, 2)


def states_of(lengths, heads, shared, depth, dtype=torch.float32, device="cpu"):
    source = torch.Generator().manual_seed(0)
    edges = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    shapes = [(1, count, int(edges[-1]), depth) for count in (heads, shared, shared)]
    states = [torch.randn(shape, generator=source) for shape in shapes]
    states = [state.to(device, dtype).requires_grad_() for state in states]
    return *states, edges.to(device)


def module_of(heads, shared):
    module = nn.Module()
    module.is_causal, module.num_key_value_groups = True, heads // shared
    return module


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("lengths", [[7], [1, 1, 1], [5, 1, 12, 3]])
def test_attention_is_that_of_each_sequence_by_itself(lengths, heads, shared, scale):
    query, key, value, edges = states_of(lengths, heads, shared, 8)
    given = {"cu_seq_lens_q": edges, "max_length_q": max(lengths)}
    found, _ = attend_packed(
        module_of(heads, shared), query, key, value, None, scaling=scale, **given
    )
    expected = by_hand(query, key, value, edges, scale)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    slopes = [
        torch.autograd.grad((weights * output).sum(), (query, key, value))
        for output in (found, expected)
    ]
    for slope, wanted in zip(*slopes, strict=True):
        torch.testing.assert_close(slope, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tell", [True, False], ids=["torch 2.12 on", "torch 2.11"])
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2)])
def test_the_kernel_is_told_all_that_it_must_know(monkeypatch, heads, shared, tell):
    """Its arguments, on a machine without it: a stand-in that does what torch says it does."""

    def stand_in(q, k, v, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1), **more):
        assert more == ({"enable_gqa": True} if tell else {})
        assert window_size == (-1, 0)  # causal
        assert torch.equal(cu_q, cu_k)
        assert max_q == max_k == 6
        rows = [states.transpose(0, 1)[None] for states in (q, k, v)]
        return by_hand(*rows, cu_q, scale)[0]

    monkeypatch.setattr(attention, "_kernel_takes", lambda *_: True)
    monkeypatch.setattr(attention, "_TELL_SHARED", tell)
    monkeypatch.setattr(attention, "varlen_attn", stand_in)
    query, key, value, edges = states_of([4, 6, 1], heads, shared, 8)
    ends = {"cu_seq_lens_q": edges, "cu_seq_lens_k": edges, "max_length_q": 6, "max_length_k": 6}
    plain = {"position_ids": torch.zeros(1, 11), "use_cache": False, "sliding_window": None}
    given = {"scaling": 0.3, **ends, **plain}
    found, _ = attend_packed(module_of(heads, shared), query, key, value, None, **given)
    torch.testing.assert_close(found, by_hand(query, key, value, edges, 0.3))
    monkeypatch.setattr(attention, "_by_padding", lambda *_: "padded")
    for more in ({"dropout": 0.1}, {"position_bias": torch.zeros(1, heads, 6, 6)}):
        found, _ = attend_packed(module_of(heads, shared), query, key, value, None, **given, **more)
        assert found == "padded"


def test_under_autocast_attention_is_in_its_dtype():
    query, key, value, edges = states_of([4, 6], 2, 2, 8)
    given = {"cu_seq_lens_q": edges, "max_length_q": 6}
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = attend_packed(module_of(2, 2), query, key, value.bfloat16(), None, **given)
    assert found.dtype == torch.bfloat16
    expected = by_hand(query, key, value, edges, None)
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0)


def test_what_cannot_be_answered_is_an_error():
    query, key, value, edges = states_of([4, 6], 2, 2, 8)
    given = {"cu_seq_lens_q": edges, "max_length_q": 6}
    module = module_of(2, 2)
    with pytest.raises(RuntimeError, match="where packed sequences end"):
        attend_packed(module, query, key, value, None)
    with pytest.raises(RuntimeError, match="where packed sequences end"):
        attend_packed(module, query, key, value, torch.ones(1, 1, 10, 10), **given)
    with pytest.raises(RuntimeError, match="sliding window"):
        attend_packed(module, query, key, value, None, sliding_window=5, **given)
    with pytest.raises(RuntimeError, match="not causal"):
        attend_packed(module, query, key, value, None, is_causal=False, **given)
    for asked in ({"softcap": 30.0}, {"s_aux": torch.zeros(2)}):
        with pytest.raises(RuntimeError, match=f"attends with {next(iter(asked))}"):
            attend_packed(module, query, key, value, None, **asked, **given)
    wide, _ = attend_packed(module, query, key, value, None, sliding_window=6, **given)
    torch.testing.assert_close(wide, by_hand(query, key, value, edges, None))


def test_only_models_that_keep_sequences_apart_are_packed():
    assert all(can_pack(make()) for make in MODELS.values())
    assert not can_pack(nn.Linear(2, 2))
    small = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    small |= {"num_hidden_layers": 1, "vocab_size": 20, "num_key_value_heads": 2}
    for window, fits in ((16, False), (None, True)):
        model = MistralForCausalLM(MistralConfig(**small, sliding_window=window))
        assert can_pack(model) is fits
    eager = tiny.policy()
    eager.set_attn_implementation("eager")
    assert not can_pack(eager)
    for name, value in [
        ("layer_types", ["full_attention", "linear_attention"]),
        ("attn_logit_softcapping", 30.0),
        ("layers_block_type", ["attention", "mamba"]),
    ]:
        changed = tiny.policy()
        changed.config = copy.deepcopy(changed.config)
        setattr(changed.config, name, value)
        assert not can_pack(changed), name
    sees_all = tiny.policy()
    sees_all.model.layers[1].self_attn.is_causal = False
    assert not can_pack(sees_all)
    assert isinstance(tiny.policy().config, LlamaConfig)


def test_on_a_cpu_sequences_are_padded():
    assert layout_of(tiny.policy(), 5) == Layout(packed=False, pad_id=5)


def test_the_name_has_no_masks_of_its_own():
    from transformers import AttentionMaskInterface

    assert NAME not in AttentionMaskInterface()
