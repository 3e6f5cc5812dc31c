"""The one owner of the model: modes, precision, the generator that a setting names, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiny
from dare import DareConfig, InvalidInput
from dare.policy.generate import Generated, GenerationRequest
from dare.policy.model import check_device, check_dtype, load
from dare.policy.policy import Policy
from dare_decoder import Sampling

PROMPTS = [tiny.encode("1+2="), tiny.encode("3+4+5=")]
RESPONSES = [np.array([5, 6, 1]), np.array([7, 8, 9, 1])]


class Echo:
    """A generator of somebody's own."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.calls = policy, []

    def generate(self, request: GenerationRequest, sampling: Sampling) -> Generated:
        self.calls.append("generate")
        return Generated([np.array([tiny.END])] * len(request.prompt_R), np.zeros(2, np.int64))

    def sync(self) -> None:
        self.calls.append("sync")

    def release(self) -> None:
        self.calls.append("release")

    def close(self) -> None:
        self.calls.append("close")


def request() -> GenerationRequest:
    return GenerationRequest(PROMPTS, np.arange(2), np.full(2, 5), np.arange(2), 0, 0)


def test_nothing_but_an_update_leaves_a_trace_on_the_model() -> None:
    model = tiny.policy().train()
    policy = Policy(model, tiny.tokenizer(), precision=torch.bfloat16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    policy.generate(request(), Sampling(1.0))
    policy.score(PROMPTS, RESPONSES, Sampling(1.0))
    policy.embed(PROMPTS)
    policy.entropy(PROMPTS, RESPONSES, 1.0)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())
    assert {value.dtype for value in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_mixed_precision_is_near_float32_and_is_not_it(precision: torch.dtype) -> None:
    exact = Policy(tiny.policy(), tiny.tokenizer()).score(PROMPTS, RESPONSES, Sampling(1.0, 1.0))
    mixed = Policy(tiny.policy(), tiny.tokenizer(), precision=precision)
    found = mixed.score(PROMPTS, RESPONSES, Sampling(1.0, 1.0))
    assert found.logprobs.dtype == np.float32
    assert 0.0 < np.abs(found.logprobs - exact.logprobs).max() < 0.3


def test_a_generator_of_ones_own_is_named_and_told_of_updates() -> None:
    policy = Policy(tiny.policy(), tiny.tokenizer(), generator="test_policy:Echo")
    assert isinstance(policy.generator, Echo)
    assert policy.generator.policy is policy
    assert [tokens.tolist() for tokens in policy.generate(request(), Sampling()).tokens] == [
        [1]
    ] * 2
    policy.release()
    policy.updated()
    policy.close()
    assert policy.generator.calls == ["generate", "release", "sync", "close"]


def test_a_run_tells_its_generator(tmp_path: Any) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=2, generator="test_policy:Echo", preset="grpo")
    trainer.policy.generator.generate = lambda asked, _: Generated(  # type: ignore[method-assign]
        [np.array([5, 1])] * len(asked.prompt_R), np.zeros(len(asked.prompt_R), np.int64)
    )
    trainer.train()
    assert trainer.policy.generator.calls == ["sync", "release", "sync", "release", "sync", "close"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("vlm", "module:Class"),
        ("no_such_module:Thing", "cannot be imported"),
        ("json:loads_of", "cannot be imported"),
        (object(), "has no generate"),
    ],
)
def test_a_generator_that_is_none_is_refused(choice: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        Policy(tiny.policy(), tiny.tokenizer(), generator=choice)
    assert caught.value.field == "generator"


def test_no_rows_are_refused() -> None:
    with pytest.raises(InvalidInput, match="generation_rows = 0: must be at least 1"):
        Policy(tiny.policy(), tiny.tokenizer(), generation_rows=0)


def test_a_dtype_that_is_none_or_that_the_card_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert check_dtype("bfloat16", cpu, "dtype") == torch.bfloat16
    with pytest.raises(InvalidInput, match="choose one of auto, float32"):
        check_dtype("int8", cpu, "model_init_kwargs.dtype")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: False)
    with pytest.raises(InvalidInput, match="choose float16 or float32"):
        check_dtype("bfloat16", torch.device("cuda"), "bf16")


def test_weights_that_the_card_cannot_do_are_refused_whoever_chose_their_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`auto` takes the checkpoint's dtype, and a ready model has its own."""
    model = tiny.policy(torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: False)
    check_device(model, torch.device("cpu"), "model")
    check_device(tiny.policy(), torch.device("cuda"), "model")
    with pytest.raises(InvalidInput, match="this GPU cannot compute in it") as caught:
        check_device(model, torch.device("cuda"), "model")
    assert (caught.value.field, caught.value.value) == ("model", "bfloat16")


def test_defaults_of_a_machine_without_a_gpu(tmp_path: Any) -> None:
    args = DareConfig(str(tmp_path))
    assert (args.bf16, args.gradient_checkpointing, args.use_liger_kernel) == (False, False, False)
    assert args.precision is None
    options = args.model_options(adapters=True)
    assert options == {"dtype": torch.float32, "trust_remote_code": False}


def test_defaults_of_a_machine_with_one(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    monkeypatch.setattr("dare.training.config.TrainingArguments.__post_init__", lambda self: None)
    for name, value in (("world_size", 1), ("deepspeed_plugin", None)):  # the above sets them up
        monkeypatch.setattr(DareConfig, name, value, raising=False)
    args = DareConfig(str(tmp_path))
    assert args.bf16
    assert args.gradient_checkpointing
    assert args.gradient_checkpointing_kwargs == {"use_reentrant": False}
    assert args.precision == torch.bfloat16
    assert not DareConfig(str(tmp_path), fp16=True).bf16
    assert not DareConfig(str(tmp_path), bf16=False).bf16


def test_a_vocabulary_padded_beyond_the_tokenizer_is_fine() -> None:
    wide = tiny.blank(vocab_size=len(tiny.VOCABULARY) + 40)
    policy = Policy(*load(wide, tiny.tokenizer()))
    made = policy.generate(request(), Sampling(2.0, 1.0))
    texts = policy.tokenizer.batch_decode(made.tokens, skip_special_tokens=True)
    assert all(isinstance(text, str) for text in texts)


def test_another_models_tokenizer_is_refused() -> None:
    narrow = tiny.blank(vocab_size=len(tiny.VOCABULARY) - 10)
    with pytest.raises(InvalidInput, match="is it another model's"):
        load(narrow, tiny.tokenizer())


def test_a_tokenizer_without_a_pad_token_pads_with_its_end() -> None:
    _, tokenizer = load(tiny.policy(), tiny.tokenizer(pad=False))
    assert tokenizer.pad_token_id == tiny.END
