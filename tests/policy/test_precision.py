"""Reading given tokens in 16 bits: weights loaded so, or float32 weights under autocast.

bfloat16 keeps 8 bits: every product is rounded by up to 1 part in 256, float16 by 1 in 2048. How
much of that is left in a log-prob or a gradient depends on the model, so a plain pass in the same
dtype is the measure: nothing here may be further from float32 than that, but for a few such steps.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from given_tokens import (
    MODELS,
    PACKED,
    PADDED,
    PROMPTS,
    RESPONSES,
    ROWS,
    TOKENS,
    far,
    gradients,
    sampling_logprob,
)
from torch.nn.functional import linear

import tiny
from dare.policy import logprobs
from dare.policy.embed import embed_prompts
from dare.policy.logprobs import head_logprob, log_kept_mass
from dare.policy.score import batch_logprobs, both_logprobs, mean_entropy, score, token_entropy
from dare_decoder.sampling import Sampling, keep_nucleus

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
STEP = {BF16: 2.0**-8, F16: 2.0**-11}
WAYS = [("loaded", BF16), ("loaded", F16), ("autocast", BF16), ("autocast", F16)]
SAMPLING = Sampling(0.7, 0.9)


def prepared(name, way, dtype):
    """The model in this dtype, and the context in which it is run."""
    model = MODELS[name]()
    if way == "loaded":
        return model.to(dtype), nullcontext()
    return model, torch.autocast("cpu", dtype)


def trained(model, layout, context=None, sampling=None):
    with context or nullcontext():
        batch = layout.batch(PROMPTS, RESPONSES, ROWS)
        value, kept = batch_logprobs(model, batch, 0.7, sampling)
    model.zero_grad()
    (value * torch.linspace(-1.0, 2.0, TOKENS)).sum().backward()
    return value.detach(), kept, gradients(model)


def plainly(model, context):
    """The same from whole logits of one sequence at a time, by torch's own derivatives."""
    found = []
    with context:
        for row in ROWS:
            prompt, response = PROMPTS[row], RESPONSES[row]
            ids = torch.tensor(np.concatenate([prompt, response]))[None]
            logprob = (model(input_ids=ids).logits[0].float() / 0.7).log_softmax(-1)
            place = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
            found.append(logprob[place, ids[0, len(prompt) :]])
    value = torch.cat(found)
    model.zero_grad()
    (value * torch.linspace(-1.0, 2.0, TOKENS)).sum().backward()
    return value.detach(), gradients(model)


@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=["packed", "padded"])
@pytest.mark.parametrize(("way", "dtype"), WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradient_are_as_near_to_float32_as_a_plain_pass(name, way, dtype, layout):
    truth, true_slope = plainly(MODELS[name](), nullcontext())
    model, context = prepared(name, way, dtype)
    plain, plain_slope = plainly(model, context)
    dtypes = {name: grad.dtype for name, grad in plain_slope.items()}
    usual = far({name: grad.float() for name, grad in plain_slope.items()}, true_slope)
    value, _, slope = trained(model, layout, context)
    assert value.dtype == F32
    assert {name: grad.dtype for name, grad in slope.items()} == dtypes
    assert set(dtypes.values()) == {dtype if way == "loaded" else F32}
    assert (value - truth).abs().max() < 1.5 * (plain - truth).abs().max() + 2 * STEP[dtype]
    found = far({name: grad.float() for name, grad in slope.items()}, true_slope)
    assert found < 1.5 * usual + STEP[dtype]


@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=["packed", "padded"])
@pytest.mark.parametrize(("way", "dtype"), WAYS)
def test_score_entropy_and_embedding_are_those_of_float32(way, dtype, layout):
    model, context = prepared("taught", way, dtype)
    plain = tiny.policy()
    with context:
        found = score(model, PROMPTS, RESPONSES, SAMPLING, pad_id=0, drawn=True, layout=layout)
        entropy = mean_entropy(model, PROMPTS, RESPONSES, 0.7, pad_id=0, layout=layout)
        rows = embed_prompts(model, PROMPTS, pad_id=0, layout=layout)
    expected = score(plain, PROMPTS, RESPONSES, SAMPLING, pad_id=0, drawn=True)
    assert found.logprobs.dtype == np.float32
    assert np.abs(found.logprobs - expected.logprobs).max() < 24 * STEP[dtype]
    # 8 steps for each of at most 25 tokens, about twice what is seen: errors mostly cancel.
    assert np.abs(found.total - expected.total).max() < 8 * STEP[dtype] * 25
    assert np.abs(entropy - mean_entropy(plain, PROMPTS, RESPONSES, 0.7, pad_id=0)).max() < (
        8 * STEP[dtype]
    )
    assert rows.dtype == np.float32
    assert np.abs(rows - embed_prompts(plain, PROMPTS, pad_id=0)).max() < 16 * STEP[dtype]


@pytest.mark.parametrize(("way", "dtype"), WAYS)
def test_what_is_trained_is_what_was_scored(way, dtype):
    """One policy, two ways to read it: any difference would enter ratios that should be 1."""
    model, context = prepared("taught", way, dtype)
    value, kept, _ = trained(model, PADDED, context, SAMPLING)
    batch = PADDED.batch(PROMPTS, RESPONSES, ROWS)
    with context:
        full, exact = both_logprobs(model, batch, SAMPLING, drawn=True)
    torch.testing.assert_close(value, full, atol=1e-5, rtol=0)
    torch.testing.assert_close((value - kept[0]).clamp(max=0.0), exact, atol=1e-5, rtol=0)


def head_inputs(rows=37, width=24, vocabulary=60, bias=True):
    source = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, width, generator=source)
    weight = 0.5 * torch.randn(vocabulary, width, generator=source)
    offset = torch.randn(vocabulary, generator=source) if bias else None
    return hidden, weight, offset, torch.randint(vocabulary, (rows,), generator=source)


def by_definition(hidden, weight, bias, targets, upstream, dtype=F32):
    """Values and gradients in float64 from factors rounded to `dtype` as the head rounds them."""
    leaves = [None if v is None else v.to(dtype).double() for v in (hidden, weight, bias)]
    leaves = [None if v is None else v.requires_grad_() for v in leaves]
    logits = linear(*leaves).to(dtype).double() / 0.7
    value = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    (value * upstream.double()).sum().backward()
    return value, [None if leaf is None else leaf.grad for leaf in leaves]


def by_head(hidden, weight, bias, targets, upstream, dtype):
    leaves = [None if v is None else v.clone().requires_grad_() for v in (hidden, weight, bias)]
    context = nullcontext() if dtype == F32 else torch.autocast("cpu", dtype)
    with context:
        value, kept = head_logprob(*leaves, targets, 0.7)
    assert kept is None
    (value * upstream).sum().backward()
    return value, [None if leaf is None else leaf.grad for leaf in leaves]


@pytest.mark.parametrize("elements", [60, 300, 1 << 21])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_the_head_rounds_factors_only(monkeypatch, dtype, bias, elements):
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", elements)
    inputs = head_inputs(bias=bias)
    upstream = torch.linspace(-1.0, 2.0, 37)
    expected, expected_slopes = by_definition(*inputs, upstream, dtype)
    value, slopes = by_head(*inputs, upstream, dtype)
    step = STEP.get(dtype, 1e-6)
    assert value.dtype == F32
    # Its logits, of size 10 or so, are rounded once; the sums over them are not.
    torch.testing.assert_close(value.double(), expected, atol=1e-4 if dtype == F32 else 0.2, rtol=0)
    for slope, wanted in zip(slopes, expected_slopes, strict=True):
        if slope is None or wanted is None:
            assert slope is wanted
            continue
        assert slope.dtype == F32
        gap = float((slope - wanted).abs().max() / wanted.abs().max())
        assert gap < 12 * step


def test_float16_keeps_slopes_that_it_could_not_hold():
    """A weight of 1e-7 a token is below what float16 resolves; the direction must survive."""
    inputs = head_inputs()
    upstream = torch.linspace(-1.0, 2.0, 37)
    _, expected = by_definition(*inputs, upstream)
    _, slopes = by_head(*inputs, 1e-7 * upstream, F16)
    for slope, wanted in zip(slopes, expected, strict=True):
        gap = float((1e7 * slope - wanted).abs().max() / wanted.abs().max())
        assert gap < 0.02


def test_many_chunks_add_up_in_float32(monkeypatch):
    """Each chunk adds 1 / 1000 of the whole: sums in bfloat16 would stop growing at 1 / 256."""
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", 1)
    hidden, weight, bias, targets = head_inputs(rows=1)
    hidden, targets = hidden.expand(1000, -1).bfloat16(), targets.expand(1000)
    weight, bias = weight.bfloat16().requires_grad_(), bias.bfloat16().requires_grad_()
    head_logprob(hidden, weight, bias, targets, 1.0)[0].sum().backward()
    many = [weight.grad.float(), bias.grad.float()]
    weight.grad = bias.grad = None
    head_logprob(hidden[:1], weight, bias, targets[:1], 1.0)[0].sum().backward()
    for found, once in zip(many, (weight.grad, bias.grad), strict=True):
        wanted = 1000 * once.float()
        assert float((found - wanted).abs().max() / wanted.abs().max()) < 0.01


def test_the_weight_is_cast_once_a_pass(monkeypatch):
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", 60)  # 37 chunks
    hidden, weight, bias, targets = head_inputs()
    seen = []
    real = logprobs.linear

    def watched(rows, cast, offset):
        seen.append(cast.data_ptr())
        assert rows.dtype == cast.dtype == offset.dtype == BF16
        return real(rows, cast, offset)

    monkeypatch.setattr(logprobs, "linear", watched)
    weight.requires_grad_()
    with torch.autocast("cpu", BF16):
        value, _ = head_logprob(hidden, weight, bias, targets, 1.0)
    forwards = set(seen)
    seen.clear()
    value.sum().backward()
    assert len(forwards) == len(set(seen)) == 1
    assert weight.grad.dtype == F32


def test_no_more_is_computed_than_is_asked_for():
    hidden, weight, bias, targets = head_inputs()
    hidden.requires_grad_()
    head_logprob(hidden, weight, bias, targets, 1.0)[0].sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None
    assert bias.grad is None


@pytest.mark.parametrize("sampling", [Sampling(0.7, 0.9), Sampling(1.0, 1.0, 5), SAMPLING])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_the_kept_mass_turns_one_log_prob_into_the_other(sampling, dtype):
    source = torch.Generator().manual_seed(3)
    logits = (3.0 * torch.randn(40, 30, generator=source)).to(dtype)
    kept = log_kept_mass(logits, sampling)
    scaled = keep_nucleus(logits.float() / sampling.temperature, sampling.top_p, sampling.top_k)
    mass = (logits.double() / sampling.temperature).softmax(-1)[scaled.isfinite()]
    owner = scaled.isfinite().nonzero()[:, 0]
    expected = torch.zeros(40, dtype=torch.float64).index_add(0, owner, mass).log()
    assert kept.dtype == F32
    assert float(kept.min()) < -0.01  # something was cut
    torch.testing.assert_close(kept.double(), expected, atol=1e-5, rtol=0)
    drawn = scaled.softmax(-1).multinomial(1, generator=source)[:, 0]
    exact = sampling_logprob(logits, drawn, sampling.temperature, sampling.top_p, sampling.top_k)
    full = (logits.float() / sampling.temperature).log_softmax(-1)
    difference = full.gather(-1, drawn[:, None])[:, 0] - kept
    torch.testing.assert_close(difference, exact, atol=1e-5, rtol=0)


def test_nothing_cut_is_a_mass_of_1():
    logits = torch.randn(5, 9)
    assert torch.equal(log_kept_mass(logits, Sampling(0.6, 1.0)), torch.zeros(5))


@pytest.mark.parametrize("name", ["taught", "scaled"])
@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=["packed", "padded"])
def test_the_update_pass_tells_the_mass_without_changing_its_gradient(name, layout):
    model = MODELS[name]()
    value, kept, slope = trained(model, layout, sampling=SAMPLING)
    slope = {name: grad.clone() for name, grad in slope.items()}
    plain, none, plain_slope = trained(model, layout)
    assert none is None
    assert not kept.requires_grad
    assert kept.shape == (2, *value.shape)
    assert float(kept[0].min()) < -0.01
    assert torch.equal(value, plain)
    assert far(slope, plain_slope) == 0.0


def test_entropy_of_chunks_is_entropy(monkeypatch):
    logits = torch.randn(11, 20, generator=torch.Generator().manual_seed(0))
    whole = token_entropy(logits, 0.7)
    expected = torch.distributions.Categorical(logits=logits / 0.7).entropy()
    torch.testing.assert_close(whole, expected)
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", 40)
    assert torch.equal(token_entropy(logits, 0.7), whole)
