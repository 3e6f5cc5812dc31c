"""The Triton kernels against plain torch, and the captured step against the model; on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from test_paged import PROMPTS, build

import tiny
from dare.policy.generate import GenerationRequest, TransformersGenerator
from dare_decoder.paged import plain
from dare_decoder.paged.state import Outputs, Slots
from dare_decoder.sampling import Sampling, keep_nucleus

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DTYPES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def gap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.fixture(scope="module")
def kernels():
    return pytest.importorskip("dare_decoder.paged.kernels")


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_activation(kernels, dtype: torch.dtype) -> None:
    x, delta = torch.randn(2, 9, 200, device="cuda", dtype=dtype)
    weight = torch.randn(200, device="cuda", dtype=dtype)
    mine, theirs = x.clone(), x.clone()
    found = kernels.add_norm(mine, delta, weight, 1e-6, torch.empty_like(x))
    wanted = plain.add_norm(theirs, delta, weight, 1e-6, torch.empty_like(x))
    assert gap(found, wanted) < DTYPES[dtype]
    assert gap(mine, theirs) < DTYPES[dtype]
    out = torch.empty(9, 100, device="cuda", dtype=dtype)
    assert gap(kernels.silu_mul(x, out.clone()), plain.silu_mul(x, out)) < DTYPES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [16, 80, 128])
@pytest.mark.parametrize("splits", [1, 3])
def test_rotation_pages_and_attention(kernels, dtype, depth: int, splits: int) -> None:
    rows, heads, shared, page = 17, 6, 2, 16
    slots = Slots.empty(rows, 12, torch.device("cuda"))
    slots.prefix.copy_(torch.randint(0, 60, (rows,)))
    slots.own.copy_(torch.randint(0, 90, (rows,)))
    slots.alive.fill_(1)
    slots.table.copy_(torch.randperm(rows * 12).view(rows, 12) + 1)
    keys, values = torch.randn(2, rows * 12 + 1, shared, page, depth, device="cuda", dtype=dtype)
    qkv = torch.randn(rows, (heads + 2 * shared) * depth, device="cuda", dtype=dtype)
    angles = tuple(torch.randn(2, 200, depth // 2, device="cuda"))
    norms = tuple(torch.randn(2, depth, device="cuda", dtype=dtype))
    for given in (None, norms):
        mine, theirs = (keys.clone(), values.clone()), (keys.clone(), values.clone())
        query = torch.empty(2, rows, heads, depth, device="cuda", dtype=dtype)
        kernels.rotate_store(qkv, query[0], *mine, angles, given, slots, 1e-6)
        plain.rotate_store(qkv, query[1], *theirs, angles, given, slots, 1e-6)
        for found, wanted in zip((query[0], *mine), (query[1], *theirs), strict=True):
            assert gap(found, wanted) < DTYPES[dtype]
    scratch = None
    if splits > 1:
        shape = (rows, heads, splits)
        high, total = torch.empty(2, *shape, device="cuda")
        scratch = (torch.empty(*shape, depth, device="cuda"), high, total)
    out = torch.empty_like(query[0])
    found = kernels.attend(query[0], *mine, slots, 0.1, out.clone(), scratch)
    assert gap(found, plain.attend(query[0], *mine, slots, 0.1, out)) < DTYPES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [0.5, 3.0, 8.0])
@pytest.mark.parametrize(
    "sampling", [Sampling(0.6, 0.95), Sampling(1.0, 1.0), Sampling(0.0), Sampling(0.8, 0.9, 50)]
)
def test_sampling_and_the_mass_it_keeps(kernels, dtype, spread: float, sampling: Sampling) -> None:
    rows, vocabulary = 32, 20000
    logits = (spread * torch.randn(rows, vocabulary, device="cuda")).to(dtype)
    noise = torch.rand(rows, 4, device="cuda")
    made = []
    for operations in (kernels, plain):
        slots = Slots.empty(rows, 1, torch.device("cuda"))
        slots.alive.fill_(1)
        slots.budget.fill_(4)
        slots.row.copy_(torch.arange(rows))
        tokens = torch.zeros(rows, 4, dtype=torch.int32, device="cuda")
        ends = torch.tensor([3], dtype=torch.int32, device="cuda")
        outputs = Outputs(noise, ends, tokens, tokens[:, 0].clone(), tokens[:, 0].clone())
        operations.sample(logits, slots, outputs, sampling)
        made.append(outputs.tokens[:, 0])
    # Sums in another order move an edge between two tokens by less than a millionth.
    assert (made[0] == made[1]).float().mean() > 0.9
    if sampling.temperature:
        logit_kernels = pytest.importorskip("dare_decoder.logit_kernels")
        found = logit_kernels.nucleus_log_mass(logits, *vars(sampling).values())
        scaled = logits.float() / sampling.temperature
        kept = keep_nucleus(scaled, sampling.top_p, sampling.top_k)
        wanted = kept.logsumexp(-1) - scaled.logsumexp(-1)
        assert (found - wanted).abs().max() < (0.02 if dtype == torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("name", ["taught", "llama", "qwen2", "qwen3"])
def test_the_captured_step_samples_what_the_model_does(name: str) -> None:
    model = build(name).cuda()
    request = GenerationRequest(
        PROMPTS, np.repeat(np.arange(6), 40), np.full(240, 24), np.arange(240), 0, 0
    )
    found = []
    for paged in (False, True):
        generator = TransformersGenerator(
            lambda: model, pad_id=tiny.PAD, end_ids=[tiny.END], paged=paged, max_rows=100
        )
        found.append(generator.generate(request, Sampling(1.0, 0.95)).tokens)
        assert generator._paged is paged
    same = [np.array_equal(a, b) for a, b in zip(*found, strict=True)]
    assert np.mean(same) > 0.95  # a token on the edge of two may fall either way


def test_greedy_through_the_kernels_is_the_librarys_greedy() -> None:
    model = build("llama").cuda()
    generator = TransformersGenerator(lambda: model, pad_id=tiny.PAD, end_ids=[tiny.END])
    asked = GenerationRequest(PROMPTS, np.arange(6), np.full(6, 20), np.arange(6), 0, 0)
    made = generator.generate(asked, Sampling(0.0))
    assert generator._paged is True
    for prompt, tokens in zip(PROMPTS, made.tokens, strict=True):
        ids = torch.from_numpy(prompt)[None].cuda()
        wanted = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False
        )
        assert wanted[0, len(prompt) :].tolist() == tokens.tolist()


def test_frequencies_through_the_kernels_are_those_of_the_distribution() -> None:
    model, draws = build("llama").cuda(), 4000
    ids = torch.from_numpy(PROMPTS[2])[None].cuda()
    logits = model(ids).logits[0, -1].double().cpu() / 1.3
    chance = logits.softmax(-1).sort(descending=True)
    kept = chance.values[chance.values.cumsum(0) - chance.values < 0.9]
    generator = TransformersGenerator(
        lambda: model, pad_id=tiny.PAD, end_ids=[tiny.END], max_rows=512
    )
    asked = GenerationRequest(
        PROMPTS, np.full(draws, 2), np.ones(draws, int), np.arange(draws), 7, 0
    )
    drawn = generator.generate(asked, Sampling(1.3, 0.9))
    assert generator._paged is True
    count = np.bincount(np.concatenate(drawn.tokens), minlength=len(tiny.VOCABULARY))
    inside = count[chance.indices[: len(kept)].numpy()]
    assert inside.sum() == draws, "nothing outside the nucleus"
    expected = (kept / kept.sum()).detach().numpy() * draws
    assert (expected >= 5).all(), "a nucleus of few tokens, each drawn often"
    assert stats.chisquare(inside, expected).pvalue > 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_normaliser_and_slope_of_the_log_softmax(dtype: torch.dtype) -> None:
    logit_kernels = pytest.importorskip("dare_decoder.logit_kernels")
    logits = (3.0 * torch.randn(40, 10007, device="cuda")).to(dtype)
    targets = torch.randint(10007, (40,), device="cuda")
    grad = torch.randn(40, device="cuda")
    scaled = (logits.float() / 0.6).requires_grad_()
    wanted = scaled.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    wanted.backward(grad)
    normaliser, chosen, ahead = logit_kernels.normalise(logits, targets, 0.6, ahead=True)
    assert (chosen - normaliser - wanted).abs().max() < 1e-4
    above = (scaled > scaled.gather(-1, targets[:, None])).float()
    assert (ahead - (scaled.softmax(-1) * above).sum(-1)).abs().max() < 1e-4
    slope = logit_kernels.slope_(logits.clone(), targets, normaliser, grad, 0.6)
    assert gap(slope, scaled.grad) < DTYPES[dtype]
