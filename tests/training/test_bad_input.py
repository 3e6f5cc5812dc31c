"""What cannot work is refused before anything is generated, with the field, the value, the fix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig

import tiny
from dare import DareConfig, DareTrainer, InvalidInput


def refused(match: str, folder: Path, *, train: bool = False, **changes: Any) -> InvalidInput:
    """The error that this trainer raises, in the constructor unless `train` is set."""
    if train:
        trainer = tiny.trainer(folder, max_steps=1, **changes)
        with pytest.raises(InvalidInput, match=match) as caught:
            trainer.train()
    else:
        with pytest.raises(InvalidInput, match=match) as caught:
            tiny.trainer(folder, max_steps=1, **changes)
    return caught.value


# --- data -----------------------------------------------------------------------------------------


def test_no_column_prompt(tmp_path: Path) -> None:
    data = [{"question": "1+1=", "answer": "2"}]
    error = refused("prompt", tmp_path, data=data, reward=lambda completions: [0.0])
    assert "question" in error.fix


def test_no_rows(tmp_path: Path) -> None:
    refused("train_dataset", tmp_path, data=[])


@pytest.mark.parametrize("answer", [None, "", "  "])
def test_a_row_without_an_answer_is_named(answer: str | None, tmp_path: Path) -> None:
    rows = tiny.problems(0.5)
    rows[2]["answer"] = answer
    error = refused(re.escape("train_dataset[2]['answer']"), tmp_path, data=rows)
    assert "drop the row or fill it in" in error.fix


@pytest.mark.parametrize("prompt", [7, [], None, [{"role": "user"}], ["text"]])
def test_a_prompt_that_is_neither_text_nor_messages(prompt: Any, tmp_path: Path) -> None:
    rows = tiny.problems(0.5)
    rows[1]["prompt"] = prompt
    refused(re.escape("train_dataset[1]['prompt']"), tmp_path, data=rows)


def test_a_prompt_longer_than_the_context(tmp_path: Path) -> None:
    rows = [*tiny.problems(0.5), {"prompt": "1+" * 400, "answer": "400", "chance": 0.5}]
    error = refused("exceed the context of 768", tmp_path, data=rows)
    assert "max_completion_length" in error.fix


def test_a_prompt_that_leaves_too_little_room_for_a_response(tmp_path: Path) -> None:
    refused("exceed the context", tmp_path, max_completion_length=tiny.CONTEXT)


# --- tokenizer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template", ["{% if", "{{ raise_exception('no') }}", "{{ messages[9].content }}", " ", ["x"]]
)
def test_a_template_that_writes_no_prompt(template: Any, tmp_path: Path) -> None:
    tokens = tiny.tokenizer()
    tokens.chat_template = template
    refused("chat_template = ", tmp_path, tokens=tokens)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("model", 3),
        ("model", torch.nn.Linear(2, 2)),
        ("processing_class", "tiny"),
        ("reward_funcs", 3),
        ("reward_funcs", {"mine": tiny.lottery}),
        ("peft_config", {"r": 4}),
        ("callbacks", ["mine"]),
        ("optimizers", torch.optim.AdamW),
        ("args", {"max_steps": 3}),
    ],
)
def test_an_argument_of_another_kind(argument: str, value: Any, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "model": tiny.policy(),
        "reward_funcs": tiny.lottery,
        "args": DareConfig(str(tmp_path / "run"), use_cpu=True),
        "train_dataset": tiny.problems(0.5),
        "processing_class": tiny.tokenizer(),
    }
    with pytest.raises(InvalidInput, match=f"^{argument} = "):
        DareTrainer(**{**given, argument: value})
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_without_end_and_padding(tmp_path: Path) -> None:
    refused("pad_token", tmp_path, tokens=tiny.tokenizer(pad=False, end=False))


def test_without_any_end_token_responses_would_never_end(tmp_path: Path) -> None:
    model = tiny.blank(eos_token_id=None)
    model.generation_config.eos_token_id = None
    refused("eos_token", tmp_path, model=model, tokens=tiny.tokenizer(end=False))


def test_a_tokenizer_without_padding_pads_with_the_end_token(tmp_path: Path) -> None:
    weights = []
    for name, pad in (("own", True), ("end", False)):
        trainer = tiny.trainer(tmp_path / name, max_steps=2, tokens=tiny.tokenizer(pad=pad))
        trainer.train()
        weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    assert torch.allclose(weights[0], weights[1], atol=1e-5)


def test_a_base_tokenizer_without_a_chat_template_works(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=1, tokens=tiny.tokenizer(chat=False))
    text = trainer.processing_class.decode(trainer.store.tokens(0))
    assert text == trainer.store.records[0]["prompt"] + "\n"
    trainer.train()
    assert trainer.state.global_step == 1


# --- reward functions -----------------------------------------------------------------------------


def failing(completions: list[str], **_: Any) -> list[float]:
    raise RuntimeError("the sandbox is gone")


def test_a_reward_function_that_raises_is_named_with_its_error(tmp_path: Path) -> None:
    error = refused("failing", tmp_path, train=True, reward=failing)
    line = failing.__code__.co_firstlineno + 1
    assert "the sandbox is gone" in str(error)
    assert f"{__file__}, line {line}" in error.fix
    assert isinstance(error.__cause__, RuntimeError)


class Hostile:
    """Raises whatever it is asked."""

    def _refuse(self) -> Any:
        raise RuntimeError("never")

    __float__ = __len__ = __iter__ = __repr__ = _refuse


class Leaving:
    """Ends the program where it is read."""

    def _leave(self) -> Any:
        raise SystemExit(0)

    __float__ = __len__ = __iter__ = __repr__ = _leave


class Lying(list[float]):
    """Has fewer values than it says."""

    def __iter__(self) -> Any:
        return iter([1.0])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("too few", lambda count: [1.0] * (count - 1)),
        ("too many", lambda count: [1.0] * (count + 1)),
        ("one number", lambda count: 1.0),
        ("nothing", lambda count: None),
        ("nan", lambda count: [float("nan")] * count),
        ("too large for a float", lambda count: [10**400] * count),
        ("too large to be squared", lambda count: [1e200] * count),
        ("no number inside", lambda count: [Hostile()] * count),
        ("no length", lambda count: Hostile()),
        ("infinite", lambda count: [float("inf")] * count),
        ("words", lambda count: ["yes"] * count),
        ("numbers as words", lambda count: ["1.0"] * count),
        ("one long string", lambda count: "1" * count),
        ("lists", lambda count: [[1.0]] * count),
        ("nothing in order", lambda count: set(range(count))),
        ("bytes", lambda count: bytearray(count)),
        ("a number as bytes", lambda count: [bytearray(b"1")] * count),
        ("complex numbers", lambda count: np.ones(count) + 1j),
        ("an end of the program inside", lambda count: [Leaving()] * count),
        ("an end of the program", lambda count: Leaving()),
        ("fewer than it says", lambda count: Lying([1.0] * count)),
        ("a mapping", lambda count: dict.fromkeys(range(count), 1.0)),
    ],
)
def test_what_is_no_reward_is_refused(name: str, answer: Any, tmp_path: Path) -> None:
    def grader(completions: list[str], **_: Any) -> Any:
        return answer(len(completions))

    error = refused("reward function grader", tmp_path, train=True, reward=grader)
    assert __file__ in error.fix


def test_a_value_that_is_none_is_named_by_its_row_of_the_data(tmp_path: Path) -> None:
    """Not by its place among what the step has drawn, nor among the prompts that repeats left."""
    rows = tiny.problems(0.5, each=12)
    rows = [*rows[:3], *rows[:3], *rows[3:]]

    def grader(prompts: list[str], **_: Any) -> list[float]:
        return [float("nan") if prompt == "0+9=" else 1.0 for prompt in prompts]

    error = refused(
        "reward function grader",
        tmp_path,
        train=True,
        reward=grader,
        data=rows,
        preset="grpo",
        rollout_budget=128,
        per_device_train_batch_size=128,
    )
    assert "(row 12 of the data)" in error.field


@pytest.mark.parametrize("kind", [np.array, torch.tensor, tuple, lambda v: [bool(x) for x in v]])
def test_arrays_tensors_and_booleans_are_rewards(kind: Any, tmp_path: Path) -> None:
    def grader(completions: list[str], **_: Any) -> Any:
        return kind([float(len(text) % 2) for text in completions])

    trainer = tiny.trainer(tmp_path, max_steps=1, reward=grader)
    trainer.train()
    assert 0.0 < tiny.lines(tmp_path / "metrics.jsonl")[0]["reward"] < 1.0


def test_a_reward_function_that_needs_a_missing_column(tmp_path: Path) -> None:
    def grader(completions: list[str], rubric: list[str]) -> list[float]:
        return [0.0] * len(completions)

    error = refused(re.escape("grader(rubric)"), tmp_path, reward=grader)
    assert "answer, chance, level" in error.fix


def test_optional_columns_and_positional_arguments_are_fine(tmp_path: Path) -> None:
    def grader(prompts, completions, answer, rubric=None):
        assert rubric is None
        assert len(answer) == len(prompts) == len(completions)
        return [0.0] * len(completions)

    tiny.trainer(tmp_path, max_steps=1, reward=grader).train()


@pytest.mark.parametrize("reward", [[], [3], "accuracy"])
def test_what_cannot_be_called_is_no_reward_function(reward: Any, tmp_path: Path) -> None:
    refused("reward_funcs", tmp_path, reward=reward)


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [2.0, float("nan")]])
def test_reward_weights_that_do_not_fit(weights: list[float], tmp_path: Path) -> None:
    refused(
        "reward_weights",
        tmp_path,
        reward=[tiny.lottery, tiny.patchy],
        reward_weights=weights,
    )


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "fitting"), [(5, 4), (7, 8), (24, 16), (33, 32)])
def test_a_batch_size_that_does_not_divide_the_budget(size, fitting, tmp_path: Path) -> None:
    error = refused("per_device_train_batch_size", tmp_path, per_device_train_batch_size=size)
    assert f"try {fitting}" in error.fix
    trainer = tiny.trainer(tmp_path, per_device_train_batch_size=fitting)
    assert trainer.args.gradient_accumulation_steps == 32 // fitting


def test_an_unknown_preset_suggests_the_nearest(tmp_path: Path) -> None:
    assert "'mopps'" in refused("preset", tmp_path, preset="mops").fix


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("selection.kapa", "'kappa'"), ("roll_budget", "'rollout_budget'"), ("eazy.below", "'easy'")],
)
def test_an_unknown_curriculum_key_suggests_the_nearest(key, nearest, tmp_path: Path) -> None:
    error = refused("is no setting", tmp_path, curriculum={key: 1})
    assert nearest in error.fix


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        *(
            (name, cold)
            for name in ("temperature", "eval_temperature")
            for cold in (1e-320, 1e-45, 1e-38, 9e-4)
        ),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("beta", -0.1),
        ("max_steps", 0),
        ("hint_conditioning", "both"),
        ("auto_find_batch_size", True),
    ],
)
def test_settings_out_of_range_are_named(field: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=field):
        tiny.config(tmp_path, **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "meant"),
    [
        ("unscored_limit", "2e-2", 0.02),  # YAML 1.1 reads all of these as text
        ("save_steps", "2e1", 20),
        ("eval_temperature", "5e-1", 0.5),
        ("weight_decay", "1e-1", 0.1),
        ("max_steps", "3e0", 3),
        ("learning_rate", np.float32(0.5), 0.5),
        ("save_strategy", False, "no"),  # and a bare `no` as False
        ("eval_strategy", False, "no"),
        ("output_dir", Path("here"), "here"),
        ("reward_weights", (1, "5e-1"), [1.0, 0.5]),
    ],
)
def test_values_become_what_their_field_is(field, value, meant, tmp_path: Path) -> None:
    found = getattr(tiny.config(tmp_path, **{field: value}), field)
    assert getattr(found, "value", found) == meant
    assert not isinstance(found, str) or isinstance(meant, str)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", True),
        ("learning_rate", "fast"),
        ("weight_decay", -0.1),
        ("adam_beta2", 1.0),
        ("max_grad_norm", None),
        ("warmup_steps", float("nan")),
        ("logging_steps", 2.5),
        ("generation_rows", -3),
        ("per_device_train_batch_size", -8),
        ("eval_temperature", -0.5),
        ("eval_samples", -1),
        ("seed", 2**40),
        ("optim", "adamq"),
        ("lr_scheduler_type", "flat"),
        ("log_level", "loud"),
        ("fsdp_config", "{nope"),
        ("fsdp_config", {"reshard_after_forward": True}),
        ("include_num_input_tokens_seen", "some"),
        ("accelerator_config", {"nope": 1}),
        ("deepspeed", "nowhere.json"),
        ("curriculum", 4),
        ("reward_weights", "1, 2"),
        ("output_dir", 7),
        ("gradient_checkpointing", "maybe"),
    ],
)
def test_fields_of_transformers_and_ours_are_checked_alike(field, value, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        tiny.config(tmp_path, **{"save_strategy": "steps", field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value", "more"),
    [
        *(("optim_args", text, {}) for text in ("abc", "a=1,b", "=1", "a=1=2", "a=1,")),
        *(("torch_compile_backend", text, {}) for text in ("", "5\u00a0", "a\0b", "induct")),
        ("fsdp_config", "mine.yaml", {"fsdp": "true"}),
        ("fsdp_config", "[1]", {"fsdp": "true"}),
    ],
)
def test_a_text_that_is_read_late_is_refused_at_once_by_its_field(
    field: str, value: str, more: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as caught:
        tiny.config(tmp_path, **{"save_strategy": "no", field: value, **more})
    assert (caught.value.field, caught.value.value) == (field, value)


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("not enough values to unpack", "training"),
        ("it is unknown, none is there", "training"),
        ("there is no alpha=0.5 here", "optim_args"),
        ("alpha=0.55 is none", "training"),
        ("run_name is too long", "run_name"),
    ],
)
def test_an_error_blames_the_field_whose_whole_value_it_quotes_or_none(
    said: str, field: str, tmp_path: Path
) -> None:
    config = tiny.config(tmp_path, save_strategy="no", optim_args="alpha=0.5", run_name="ou")
    with pytest.raises(InvalidInput) as caught, config.refusals():
        raise ValueError(said)
    assert caught.value.field == field


def test_a_process_uses_one_gpu(tmp_path: Path) -> None:
    args = tiny.config(tmp_path)
    assert args.n_gpu == 0
    args._n_gpu = 8  # what TrainingArguments finds where no launcher made processes
    assert args.n_gpu == 1
    assert args.train_batch_size == args.per_device_train_batch_size


def test_training_a_ready_float16_model_is_refused(tmp_path: Path) -> None:
    """One step of AdamW would change its weights by more than they are."""
    with pytest.raises(InvalidInput, match="trained weights need float32") as caught:
        tiny.trainer(tmp_path, model=tiny.policy(torch.float16), preset="grpo", learning_rate=1e-4)
    assert (caught.value.field, caught.value.value) == ("model", "float16")


@pytest.mark.parametrize("dtype", ["auto", "float16"])
def test_training_a_float16_checkpoint_in_its_own_dtype_is_refused(
    dtype: str, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    tiny.policy(torch.float16).save_pretrained(saved)
    with pytest.raises(InvalidInput, match="`fp16: true` computes in float16") as caught:
        tiny.trainer(tmp_path / "run", model=str(saved), model_init_kwargs={"dtype": dtype})
    assert caught.value.field == "model_init_kwargs.dtype"
    trainer = tiny.trainer(tmp_path / "run", model=str(saved))  # the default is float32
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}


def test_float16_weights_under_adapters_are_frozen_and_so_allowed(tmp_path: Path) -> None:
    adapters = LoraConfig(r=4, target_modules=["q_proj"])
    trainer = tiny.trainer(tmp_path, model=tiny.policy(torch.float16), peft_config=adapters)
    trained = {weight.dtype for weight in trainer.model.parameters() if weight.requires_grad}
    assert trained == {torch.float32}


def test_a_budget_that_holds_no_group(tmp_path: Path) -> None:
    refused("rollout_budget", tmp_path, rollout_budget=8, per_device_train_batch_size=8)


def test_a_reward_that_wants_a_column_of_data_without_any_is_told_so(tmp_path: Path) -> None:
    def score(completions: list[str], gold: list[str]) -> list[float]:
        return [0.0] * len(completions)

    with pytest.raises(InvalidInput, match="it has none"):
        tiny.trainer(tmp_path, reward=score, data=[{"prompt": "1+1="}])
