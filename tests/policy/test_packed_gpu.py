"""The kernel for packed sequences and the output layer in 16 bits, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from given_tokens import MODELS, PACKED, PADDED, PROMPTS, RESPONSES, ROWS, TOKENS, far, gradients
from test_packed import by_hand, module_of, states_of
from test_precision import by_definition, head_inputs

import tiny
from dare.policy import logprobs
from dare.policy.embed import embed_prompts
from dare.policy.logprobs import head_logprob
from dare.policy.score import batch_logprobs, mean_entropy, score
from dare_decoder import Sampling
from dare_decoder import packed_attention as attention
from dare_decoder.batching import layout_of
from dare_decoder.packed_attention import attend_packed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
STEP = {BF16: 2.0**-8, F16: 2.0**-11}


@pytest.fixture
def only_kernel(monkeypatch):
    """Sequences that are padded for attention after all are an error."""
    monkeypatch.setattr(attention, "_by_padding", lambda *_: 1 / 0)


@pytest.mark.usefixtures("only_kernel")
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (12, 2), (4, 1)])
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("depth", [64, 128])
def test_the_kernel_attends_within_each_sequence(dtype, heads, shared, scale, depth):
    lengths = [5, 1, 300, 129, 1]
    query, key, value, edges = states_of(lengths, heads, shared, depth, dtype, "cuda")
    given = {"cu_seq_lens_q": edges, "max_length_q": max(lengths)}
    found, _ = attend_packed(
        module_of(heads, shared), query, key, value, None, scaling=scale, **given
    )
    exact = [state.detach().float().requires_grad_() for state in (query, key, value)]
    expected = by_hand(*exact, edges, scale)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=4 * STEP[dtype], rtol=STEP[dtype])
    weights = torch.randn(found.shape, device="cuda")
    slopes = torch.autograd.grad((weights * found).sum(), (query, key, value))
    wanted = torch.autograd.grad((weights * expected).sum(), exact)
    for slope, truth in zip(slopes, wanted, strict=True):
        assert float((slope - truth).abs().max() / truth.abs().max()) < 8 * STEP[dtype]


def test_float32_is_padded_for_attention():
    query, key, value, edges = states_of([4, 9], 4, 2, 64, F32, "cuda")
    given = {"cu_seq_lens_q": edges, "max_length_q": 9}
    found, _ = attend_packed(module_of(4, 2), query, key, value, None, **given)
    torch.testing.assert_close(found, by_hand(query, key, value, edges, None), atol=1e-4, rtol=1e-3)


def trained(model, layout, context):
    model.zero_grad()
    with context:
        batch = layout.batch(PROMPTS, RESPONSES, ROWS).to("cuda")
        value, _ = batch_logprobs(model, batch, 0.7)
    (value * torch.linspace(-1.0, 2.0, TOKENS, device="cuda")).sum().backward()
    return value.detach(), {name: grad.float().clone() for name, grad in gradients(model).items()}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("way", ["loaded", "autocast"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "scaled"])
def test_training_is_that_of_float32(name, way, dtype, checkpointing):
    truth, slope_truth = trained(
        MODELS[name]().cuda(), PADDED, torch.autocast("cuda", enabled=False)
    )
    model = MODELS[name]().cuda()
    model = model.to(dtype) if way == "loaded" else model
    context = torch.autocast("cuda", dtype, enabled=way == "autocast")
    usual, slope_usual = trained(model, PADDED, context)
    if checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    assert layout_of(model, tiny.PAD) == PACKED
    value, slope = trained(model, PACKED, context)
    assert value.dtype == F32
    worst = (usual - truth).abs().max()
    assert (value - truth).abs().max() < 2 * worst + 2 * STEP[dtype]
    assert far(slope, slope_truth) < 2 * far(slope_usual, slope_truth) + 2 * STEP[dtype]
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_reading_is_that_of_the_cpu(dtype):
    plain, model = tiny.policy(), tiny.policy(dtype).cuda()
    step = STEP.get(dtype, 1e-4)
    given = {"pad_id": tiny.PAD}
    found = score(model, PROMPTS, RESPONSES, Sampling(0.7, 1.0), **given)
    expected = score(plain, PROMPTS, RESPONSES, Sampling(0.7, 1.0), **given)
    assert np.abs(found.logprobs - expected.logprobs).max() < 24 * step
    drawn = score(model, PROMPTS, RESPONSES, Sampling(0.7, 0.9), **given, drawn=True)
    assert (drawn.total >= found.total - 1e-4).all()
    entropy = mean_entropy(model, PROMPTS, RESPONSES, 0.7, **given)
    assert np.abs(entropy - mean_entropy(plain, PROMPTS, RESPONSES, 0.7, **given)).max() < 8 * step
    rows = embed_prompts(model, PROMPTS, **given)
    assert np.abs(rows - embed_prompts(plain, PROMPTS, **given)).max() < 16 * step


@pytest.mark.parametrize("elements", [8, 1 << 21])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_the_head_rounds_factors_only(monkeypatch, dtype, elements):
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", elements)
    inputs = head_inputs()
    upstream = torch.linspace(-1.0, 2.0, 37)
    expected, expected_slopes = by_definition(*inputs, upstream, dtype)
    leaves = [value.cuda().requires_grad_() for value in inputs[:3]]
    with torch.autocast("cuda", dtype, enabled=dtype != F32):
        value, _ = head_logprob(*leaves, inputs[3].cuda(), 0.7)
    (value * upstream.cuda()).sum().backward()
    limit = 1e-3 if dtype == F32 else 0.2
    torch.testing.assert_close(value.double().cpu(), expected, atol=limit, rtol=0)
    for leaf, wanted in zip(leaves, expected_slopes, strict=True):
        assert leaf.grad.dtype == F32
        gap = float((leaf.grad.double().cpu() - wanted).abs().max() / wanted.abs().max())
        assert gap < 12 * STEP.get(dtype, 1e-4)


def test_the_weight_gradient_needs_one_accumulator_and_no_more():
    """[V, H] in float32 once, plus chunks: what a large vocabulary leaves room for."""
    vocabulary, width, rows = 100_000, 1024, 2000
    weight = torch.randn(vocabulary, width, device="cuda").mul_(0.02).requires_grad_()
    hidden = torch.randn(rows, width, device="cuda", requires_grad=True)
    targets = torch.randint(vocabulary, (rows,), device="cuda")
    with torch.autocast("cuda", BF16):
        value, _ = head_logprob(hidden, weight, None, targets, 0.7)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    value.sum().backward()
    used = torch.cuda.max_memory_allocated() - before
    whole = 4 * vocabulary * width
    chunk = 4 * 16 * logprobs._CHUNK_ELEMENTS
    assert used < 1.5 * whole + 4 * chunk  # the sum, the weight in 16 bits, a few chunks
