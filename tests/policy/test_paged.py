"""The paged decoder in plain torch: what it samples is what the model's own pass samples."""

from __future__ import annotations

import logging
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from peft import LoHaConfig, LoraConfig, VeraConfig, get_peft_model
from scipy import stats
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import tiny
from dare.policy.generate import GenerationRequest, TransformersGenerator
from dare_decoder import Decoder, Request, Sampling
from dare_decoder.paged import engine
from dare_decoder.paged.pages import PagePool, SharedPrompts, pages_for
from dare_decoder.paged.weights import read_weights
from dare_errors import InvalidInput

PROMPTS = [tiny.encode("+".join(str(d) for d in range(n + 1)) + "=") for n in range(6)]
OWNER = np.repeat(np.arange(6), 4)
BUDGET = np.tile([3, 12, 6, 1], 6)
SHAPE = {
    "vocab_size": len(tiny.VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": tiny.CONTEXT,
    "eos_token_id": tiny.END,
    "pad_token_id": tiny.PAD,
    "bos_token_id": None,
    "initializer_range": 0.3,
}


def build(name: str):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if name == "taught":
            return tiny.policy()
        if name == "llama":
            return tiny.blank(num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3)
        if name == "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)).eval()
        return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)).eval()


def request(owner=OWNER, budget=BUDGET, noise=None) -> GenerationRequest:
    noise = np.arange(len(owner)) if noise is None else noise
    return GenerationRequest(PROMPTS, np.asarray(owner), np.asarray(budget), noise, 7, 0)


def sample(model, sampling, *, paged=True, asked=None, end=(tiny.END,), **choices):
    generator = TransformersGenerator(
        lambda: model, pad_id=tiny.PAD, end_ids=end, paged=paged, **choices
    )
    found = generator.generate(request() if asked is None else asked, sampling)
    assert generator._paged is paged, "it fell back"
    return found


def same(first, second) -> bool:
    equal = all(np.array_equal(a, b) for a, b in zip(first.tokens, second.tokens, strict=True))
    return equal and np.array_equal(first.finish_R, second.finish_R)


@pytest.mark.parametrize("name", ["taught", "llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("sampling", [Sampling(1.0, 0.95), Sampling(0.0), Sampling(0.7, 0.9, 5)])
def test_it_samples_what_the_models_own_pass_samples(name: str, sampling: Sampling) -> None:
    model = build(name)
    whole = sample(model, sampling, paged=False)
    for rows, page in ((24, 64), (5, 4), (3, 8)):  # all at once; slots that are refilled
        assert same(sample(model, sampling, max_rows=rows, page=page), whole)


def test_greedy_is_the_librarys_greedy() -> None:
    model = build("llama")
    made = sample(model, Sampling(0.0), asked=request(np.arange(6), np.full(6, 20)), page=8)
    for prompt, tokens in zip(PROMPTS, made.tokens, strict=True):
        ids = torch.from_numpy(prompt)[None]
        wanted = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False
        )
        assert wanted[0, len(prompt) :].tolist() == tokens.tolist()


class Asked(Request):
    """Of a caller who knows nothing of steps and purposes."""

    def rng(self, row: int) -> np.random.Generator:
        return np.random.default_rng(row)


def test_it_serves_others_than_the_policy() -> None:
    model, asked = build("llama"), Asked(PROMPTS, OWNER, BUDGET)
    choices = {"pad_id": tiny.PAD, "end_ids": [tiny.END]}
    made, ended = Decoder(lambda: model, paged=True, **choices).sample(asked, Sampling(1.0))
    full = np.array([len(ids) for ids in made]) == BUDGET
    assert (full | ended).all()
    again, _ = Decoder(lambda: model, paged=False, **choices).sample(asked, Sampling(1.0))
    assert all(np.array_equal(one, other) for one, other in zip(made, again, strict=True))
    with pytest.raises(InvalidInput, match=r"max_rows = 0: must be at least 1"):
        Decoder(lambda: model, max_rows=0, **choices)


def test_order_of_the_request_changes_nothing() -> None:
    model = build("taught")
    whole = sample(model, Sampling(1.0, 0.9))
    order = np.random.default_rng(0).permutation(len(OWNER))
    other = sample(
        model,
        Sampling(1.0, 0.9),
        asked=request(OWNER[order], BUDGET[order], order),
        max_rows=7,
        page=4,
    )
    assert all(np.array_equal(other.tokens[at], whole.tokens[row]) for at, row in enumerate(order))


@pytest.mark.parametrize("pages", [14, 20, 33])
def test_too_few_pages_make_rollouts_wait_and_change_none(pages: int, monkeypatch) -> None:
    model = build("taught")
    asked = request(np.repeat(np.arange(6), 3), np.full(18, 30))
    whole = sample(model, Sampling(1.0, 1.0), asked=asked, end=(), page=4)
    sent_back = []
    leave = engine.Engine._leave

    def watched(self, slot, *, ended):
        sent_back.append(not ended)
        leave(self, slot, ended=ended)

    monkeypatch.setattr(engine.Engine, "_leave", watched)
    monkeypatch.setattr("dare_decoder.decoder.room_for", lambda *_, **__: (18, pages))
    tight = sample(model, Sampling(1.0, 1.0), asked=asked, end=(), page=4)
    assert same(tight, whole)
    assert any(sent_back)


def test_frequencies_are_those_of_the_distribution() -> None:
    model, draws = build("llama"), 4000
    ids = torch.from_numpy(PROMPTS[2])[None]
    logits = model(ids).logits[0, -1].double() / 1.3
    chance = logits.softmax(-1).sort(descending=True)
    kept = chance.values[chance.values.cumsum(0) - chance.values < 0.9]
    asked = request(np.full(draws, 2), np.ones(draws, int))
    drawn = sample(model, Sampling(1.3, 0.9), asked=asked, max_rows=512)
    count = np.bincount(np.concatenate(drawn.tokens), minlength=len(tiny.VOCABULARY))
    inside = count[chance.indices[: len(kept)].numpy()]
    assert inside.sum() == draws, "nothing outside the nucleus"
    expected = (kept / kept.sum()).detach().numpy() * draws
    assert (expected >= 5).all(), "a nucleus of few tokens, each drawn often"
    assert stats.chisquare(inside, expected).pvalue > 1e-3


def test_adapters_are_part_of_the_policy() -> None:
    model = get_peft_model(
        build("llama"), LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    ).eval()
    plain = sample(model, Sampling(1.0))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(1))
    moved = sample(model, Sampling(1.0))
    assert same(moved, sample(model, Sampling(1.0), paged=False))
    assert not same(moved, plain)


def test_new_weights_are_seen_after_sync() -> None:
    model = build("taught")
    generator = TransformersGenerator(lambda: model, pad_id=0, end_ids=[1], paged=True)
    first = generator.generate(request(), Sampling(1.0))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(-2.0)
    generator.sync()
    second = generator.generate(request(), Sampling(1.0))
    assert not same(second, first)
    assert same(second, sample(model, Sampling(1.0), paged=False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_differ_by_rounding_alone(dtype: torch.dtype) -> None:
    wide, narrow = build("taught"), build("taught").to(dtype)
    asked = request(np.repeat(np.arange(6), 20), np.full(120, 4))
    first = sample(wide, Sampling(1.0), asked=asked).tokens
    second = sample(narrow, Sampling(1.0), asked=asked).tokens
    assert np.mean([a[0] == b[0] for a, b in zip(first, second, strict=True)]) > 0.9


def test_mixed_precision_keeps_the_weights_and_computes_in_16_bits() -> None:
    model = build("taught")
    generator = TransformersGenerator(
        lambda: model,
        pad_id=0,
        end_ids=[1],
        paged=True,
        autocast=lambda: torch.autocast("cpu", torch.bfloat16),
    )
    generator.generate(request(), Sampling(1.0))
    assert generator._weights is not None
    assert generator._weights.dtype == torch.bfloat16
    assert generator._weights.embedding.dtype == torch.float32
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (
            lambda: GPT2LMHeadModel(
                GPT2Config(vocab_size=len(tiny.VOCABULARY), n_embd=32, n_layer=1, n_head=2)
            ),
            "layers are not a list",
        ),
        (
            # The parts of a Llama, put together otherwise: only numbers tell.
            lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, embedding_multiplier=3.0)),
            "differ from the paged decoder's",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_sampled_by_its_own_pass(model, why, caplog) -> None:
    other = model().eval()
    generator = TransformersGenerator(lambda: other, pad_id=0, end_ids=[1], paged=True)
    with caplog.at_level(logging.WARNING):
        first = generator.generate(request(), Sampling(1.0))
        generator.generate(request(), Sampling(1.0))
    said = [record.getMessage() for record in caplog.records if "slower" in record.getMessage()]
    assert len(said) == 1, "it is said once"
    assert why in said[0]
    assert same(first, sample(other, Sampling(1.0), paged=False))


def missing(device: torch.device) -> None:
    raise ModuleNotFoundError("No module named 'triton'")


def without_compiler(device: torch.device) -> None:
    """As Triton says it, which is nothing of a kind of its own."""
    raised = compile(
        "def build():\n    raise RuntimeError('Failed to find C compiler')", "", "exec"
    )
    inside = {"__name__": "triton.runtime.build"}
    exec(raised, inside)
    inside["build"]()  # type: ignore[operator]


def of_somebody_else(device: torch.device) -> None:
    raise RuntimeError("another thing")


@pytest.mark.parametrize(
    ("fails", "why"), [(missing, "No module named"), (without_compiler, "find C compiler")]
)
def test_where_triton_cannot_be_used_the_models_own_pass_samples(
    fails, why, caplog, monkeypatch
) -> None:
    model = build("taught")
    monkeypatch.setattr("dare_decoder.paged.step.operations", fails)
    generator = TransformersGenerator(lambda: model, pad_id=0, end_ids=[1], paged=True)
    with caplog.at_level(logging.WARNING):
        made = generator.generate(request(), Sampling(1.0))
    said = [record.getMessage() for record in caplog.records if "slower" in record.getMessage()]
    assert len(said) == 1
    assert "C compiler" in said[0]
    assert why in said[0]
    assert same(made, sample(model, Sampling(1.0), paged=False))


def test_an_error_that_is_not_tritons_is_not_hidden(monkeypatch) -> None:
    monkeypatch.setattr("dare_decoder.paged.step.operations", of_somebody_else)
    generator = TransformersGenerator(lambda: build("taught"), pad_id=0, end_ids=[1], paged=True)
    with pytest.raises(RuntimeError, match="another thing"):
        generator.generate(request(), Sampling(1.0))


@pytest.mark.parametrize(
    "adapters",
    [
        LoraConfig(r=4, target_modules=["q_proj"], use_dora=True),
        LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj"], lora_bias=True),
        LoHaConfig(r=4, target_modules=["q_proj"]),
        VeraConfig(r=4, target_modules=["q_proj"]),
    ],
    ids=["dora", "bias", "loha", "vera"],
)
def test_adapters_that_are_no_matrix_are_left_to_the_models_own_pass(adapters) -> None:
    model = get_peft_model(build("qwen2"), adapters).eval()
    generator = TransformersGenerator(lambda: model, pad_id=0, end_ids=[1], paged=True)
    made = generator.generate(request(), Sampling(1.0))
    assert generator._paged is False
    assert same(made, sample(model, Sampling(1.0), paged=False))


def test_prompts_are_read_about_once_where_pages_are_few(monkeypatch) -> None:
    model, read = build("taught"), []
    prefill = engine.prefill
    monkeypatch.setattr(
        engine, "prefill", lambda m, p, *rest: (read.extend(p), prefill(m, p, *rest))[1]
    )
    monkeypatch.setattr("dare_decoder.decoder.room_for", lambda *_, **__: (18, 20))
    asked = request(np.arange(6).repeat(3), np.full(18, 20))
    sample(model, Sampling(1.0, 1.0), asked=asked, end=(), page=4)
    assert len(read) <= 18


def test_pages_of_prompts_that_wait_are_given_back_before_there_is_no_room() -> None:
    model = build("taught").requires_grad_(False)
    tight = engine.Engine(
        model, read_weights(model, torch.float32), request([4, 5], [8, 8]), [], Sampling(1.0),
        rows=1, pages=10, page=4, autocast=nullcontext, progress=None,
    )  # fmt: skip
    for prompt in (4, 5):  # of both, rollouts are to come and none runs
        tight._shared.hold(prompt)
    tokens, length, _ = tight.run()
    assert length.tolist() == [8, 8]
    whole = sample(model, Sampling(1.0), asked=request([4, 5], [8, 8]), end=())
    assert all(np.array_equal(a, b) for a, b in zip(tokens.numpy(), whole.tokens, strict=True))


def test_out_of_memory_halves_the_rows(monkeypatch, caplog) -> None:
    model = build("taught")
    whole = sample(model, Sampling(1.0))
    tried = []
    run = engine.Engine.run

    def small(self):
        tried.append(len(self._row))
        if len(self._row) > 6:
            raise torch.OutOfMemoryError("no")
        return run(self)

    monkeypatch.setattr(engine.Engine, "run", small)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert same(sample(model, Sampling(1.0), max_rows=512), whole)
    assert tried == [24, 12, 6]


def test_pages_are_shared_by_a_group_and_come_back() -> None:
    pool = PagePool(12)
    shared = SharedPrompts([np.arange(9), np.arange(2)], np.array([0, 0, 1]), pool, 4)
    assert (shared.size(0), shared.last(0), shared.need(0)) == (8, 8, 2)
    pages = shared.hold(0)
    assert 0 not in pages
    assert pool.free == 9
    assert shared.need(0) == 0
    shared.begin(0)
    shared.begin(0)
    assert not shared.drop_idle()
    shared.leave(0, ended=True)
    assert pool.free == 9
    shared.leave(0, ended=True)
    assert pool.free == 11
    shared.hold(1)
    shared.begin(1)
    shared.leave(1, ended=False)
    assert shared.held(1), "a rollout is still to come"
    assert shared.drop_idle()
    assert pool.free == 11
    assert [pages_for(tokens, 4) for tokens in (0, 1, 4, 5)] == [0, 1, 1, 2]
