"""Reward functions as TRL calls them, and what they may do without harm to the run."""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

import dare
import ranks
import tiny
from dare import InvalidInput
from dare.rewards import math_reward
from dare.rewards.calling import Rewards
from dare.runs.checkpoint import verify

PRESETS = ["dare", "grpo", "paper", "paper-release", "dapo", "dots", "edco", "greso", "mopps"]
PRESETS += ["llm-judge", "current-fr", "previous-fr", "grpo+snis+selection"]


def call(
    functions: Any, rows: int = 4, columns: dict[str, list[Any]] | None = None, **more: Any
) -> Any:
    """The functions on texts `0`, `1`, ..."""
    texts = [str(row) for row in range(rows)]
    return Rewards(functions, **more)(["p"] * rows, texts, [[1]] * rows, columns or {})


def first(completions: list[Any], **_: Any) -> list[float | None]:
    return [float(len(str(text)) % 2) for text in completions]


# --- None, sums, success --------------------------------------------------------------------------


def even(completions: list[str], **_: Any) -> list[float | None]:
    return [1.0 if int(text) % 2 == 0 else None for text in completions]


def odd(completions: list[str], **_: Any) -> list[float | None]:
    return [0.5 if int(text) % 2 else None for text in completions]


def test_none_leaves_that_function_out_of_that_row() -> None:
    found = call([even, odd])
    assert found.reward == [1.0, 0.5, 1.0, 0.5]
    assert found.success == [1.0, 0.5, 1.0, 0.5]
    assert found.by_function == {"even": [1.0, None, 1.0, None], "odd": [None, 0.5, None, 0.5]}


def test_a_row_of_no_function_is_unscored_and_so_is_one_of_weight_0_alone() -> None:
    assert call(even).reward == [1.0, None, 1.0, None]
    assert call([even, odd], weights=[1.0, 0.0]).reward == [1.0, None, 1.0, None]


def test_rewards_add_up_by_weight_as_in_trl_and_success_is_their_mean() -> None:
    def half(completions: list[str], **_: Any) -> list[float]:
        return [0.5] * len(completions)

    found = call([even, half], weights=[3.0, 1.0])
    assert found.reward == [3.5, 0.5, 3.5, 0.5]
    assert found.success == [0.875, 0.5, 0.875, 0.5]


def test_a_failed_check_of_a_shipped_reward_leaves_the_row_unscored() -> None:
    """A time-out must not make the format the whole reward; a row of another task must."""
    golds = ["2", r"\frac{1", None, "2"]
    texts = [r"\boxed{2}", r"\boxed{2}", r"\boxed{2}", r"\boxed{3}"]

    def style(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    found = Rewards([math_reward, style])(["p"] * 4, texts, [[1]] * 4, {"answer": golds})
    assert found.by_function["math_reward"] == [1.0, None, None, 0.0]
    assert found.reward == [2.0, None, 1.0, 1.0]


def lengths(completions: list[Any], **_: Any) -> list[float]:
    """TRL's first example."""
    return [-abs(20.0 - len(text)) for text in completions]


def test_success_by_a_number_and_by_a_function() -> None:
    def negative(completions: list[str], **_: Any) -> list[float]:
        return [-float(text) for text in completions]

    def rule(rewards: list[float], completions: list[str], level: list[int]) -> list[bool]:
        return [reward > -level[row] for row, reward in enumerate(rewards)]

    assert call(negative).success == [None if row else 0.0 for row in range(4)]
    assert call(negative, success=-1).success == [1.0, 1.0, 0.0, 0.0]
    by_function = call(negative, success=rule, columns={"level": [1, 1, 3, 3]})
    assert by_function.reward == [0.0, -1.0, -2.0, -3.0]
    assert by_function.success == [1.0, 0.0, 1.0, 0.0]
    with pytest.raises(InvalidInput, match=r"success_threshold, rollout 0 = 7.0: must be in"):
        call(negative, success=lambda rewards: [7.0] * 4)


def test_routed_functions_train(tmp_path: Path) -> None:
    """TRL's documented pattern: each function returns None for the other's rows."""
    data = [
        {**row, "task": "ab"[place % 2]} for place, row in enumerate(tiny.problems(0.5, each=12))
    ]

    def only(wanted: str) -> Any:
        def routed(prompts: Any, completions: Any, chance: Any, task: Any, **_: Any) -> Any:
            values = tiny.lottery(prompts, completions, chance)
            return [v if t == wanted else None for v, t in zip(values, task, strict=True)]

        return routed

    trainer = tiny.trainer(tmp_path, reward=[only("a"), only("b")], data=data, max_steps=2)
    trainer.train()
    for record in tiny.lines(tmp_path / "metrics.jsonl"):
        assert record["unscored"] == 0
        assert 0.0 < record["reward"] < 1.0
        assert record["grad_norm"] > 0
        assert {"rewards/routed/mean", "rewards/routed_2/mean"} <= record.keys()
    assert (trainer.curriculum.table()["visits"] > 0).any()


@pytest.mark.parametrize("preset", PRESETS)
def test_rewards_of_any_range_train_under_every_preset(
    preset: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tiny.problems(0.5, each=12)
    settings = {"preset": preset, "max_steps": 2, "data": data, "rollout_budget": 64}
    with caplog.at_level(logging.WARNING):
        trainer = tiny.trainer(tmp_path, reward=lengths, eval_data=data[:3], **settings)
        trainer.train()
        evaluated = trainer.evaluate()
    assert len([line for line in caplog.messages if "success_threshold" in line]) == 1
    records = tiny.lines(tmp_path / "metrics.jsonl")
    assert all(-20.0 <= record["reward"] < 0.0 for record in records)
    assert max(record["grad_norm"] for record in records) > 0
    assert evaluated["eval_reward"] < 0.0
    assert "eval_accuracy" not in evaluated  # nobody can tell
    assert np.isfinite(trainer.curriculum.difficulty()).all()


def test_a_threshold_makes_difficulty_of_any_reward(tmp_path: Path) -> None:
    """The lottery on another scale: the same draws and the same weights as from 0 and 1."""

    def scaled(prompts: Any, completions: Any, chance: Any, **_: Any) -> list[float]:
        return [6.0 * v - 3.0 for v in tiny.lottery(prompts, completions, chance)]

    runs = {}
    for name, reward, more in (
        ("plain", tiny.lottery, {}),
        ("scaled", scaled, {"success_threshold": 0.0}),
    ):
        trainer = tiny.trainer(tmp_path / name, reward=reward, max_steps=4, **more)
        trainer.train()
        drawn = [
            (line["prompt"], line["failure_rate"])
            for line in tiny.lines(tmp_path / name / "selections.jsonl")
        ]
        runs[name] = (drawn, trainer.curriculum.difficulty())
    assert runs["plain"][0] == runs["scaled"][0]
    assert np.allclose(runs["plain"][1], runs["scaled"][1], atol=1e-4)


def test_what_was_not_told_stays_so_after_a_resume(tmp_path: Path) -> None:
    def late(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
        """Outside [0, 1] in the first step alone."""
        return [v - 5.0 * (trainer_state.global_step == 0) for v in first(completions)]

    settings = {"reward": late, "save_strategy": "steps", "save_steps": 1}
    whole = tiny.trainer(tmp_path / "whole", max_steps=3, **settings)
    whole.train()
    tiny.trainer(tmp_path / "parts", max_steps=2, **settings).train()
    again = tiny.trainer(tmp_path / "parts", max_steps=3, **settings)
    again.train(resume_from_checkpoint=True)
    assert np.array_equal(whole.curriculum.difficulty(), again.curriculum.difficulty())
    assert not again.collector.tells_success


@pytest.mark.parametrize("rule", [float("inf"), [1], "nowhere:at_all"])
def test_a_rule_that_is_none_is_named(rule: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="success_threshold"):
        tiny.trainer(tmp_path, success_threshold=rule)


def test_a_rule_that_is_a_function_is_kept_by_name(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, success_threshold=first, max_steps=1)
    trainer.train()
    assert f"{__name__}:first" in (tmp_path / "config.yaml").read_text()


# --- rewards that are all equal -------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["dare", "grpo"])
@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_equal_rewards_do_not_move_the_weights(preset: str, value: float, tmp_path: Path) -> None:
    model = tiny.policy()
    before = copy.deepcopy(model.state_dict())
    trainer = tiny.trainer(
        tmp_path,
        model=model,
        preset=preset,
        max_steps=4,
        weight_decay=0.0,
        reward=lambda completions, **_: [value] * len(completions),
    )
    trainer.train()
    after = trainer.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(line["grad_norm"] == 0.0 for line in tiny.lines(tmp_path / "metrics.jsonl"))


# --- coroutines, models, what functions are given -------------------------------------------------


class Meeting:
    """Async rewards that end only when all of them have begun."""

    def __init__(self, parties: int) -> None:
        self.parties, self.there, self.event = parties, 0, asyncio.Event()

    async def __call__(self, completions: list[str], **_: Any) -> list[float | None]:
        self.there += 1
        if self.there == self.parties:
            self.event.set()
        await asyncio.wait_for(self.event.wait(), 60)
        return [float(text) for text in completions]


def test_async_functions_run_side_by_side_in_any_form() -> None:
    meeting = Meeting(3)

    async def plain(completions: list[str], **more: Any) -> list[float | None]:
        return await meeting(completions)

    async def given(completions: list[str], plus: float, **_: Any) -> list[float | None]:
        return [(await meeting([text]))[0] + plus for text in completions][:1] * len(completions)

    partial = functools.partial(given, plus=1.0)
    meeting.parties = 3
    found = call([meeting, plain, partial, first])
    assert found.by_function["plain"] == [0.0, 1.0, 2.0, 3.0]
    assert found.by_function["given"] == [1.0] * 4
    assert found.reward == [2.0, 4.0, 6.0, 8.0]
    assert call(plain).reward == [0.0, 1.0, 2.0, 3.0]  # again, on the same loop


def test_async_functions_work_where_a_loop_is_running() -> None:
    async def reward(completions: list[str], **_: Any) -> list[float]:
        await asyncio.sleep(0)
        return [1.0] * len(completions)

    async def notebook() -> Any:
        return call(reward)

    assert asyncio.run(notebook()).reward == [1.0] * 4


@pytest.mark.parametrize("error", [ValueError("gone"), SystemExit(0)])
def test_async_functions_that_fail_are_named_and_take_no_other_with_them(error: Any) -> None:
    cancelled = []

    async def endless(completions: list[str], **_: Any) -> list[float]:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return []

    async def failing(completions: list[str], **_: Any) -> list[float]:
        raise error

    with pytest.raises(InvalidInput, match="reward function failing"):
        call([failing, endless])
    assert call(first).reward == [1.0] * 4
    for _ in range(1000):
        if cancelled:
            break
        time.sleep(0.01)
    assert cancelled


def classifier() -> LlamaForSequenceClassification:
    config = LlamaConfig(
        vocab_size=len(tiny.VOCABULARY),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return LlamaForSequenceClassification(config)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_a_sequence_classifier_is_a_reward(chat: bool, named: bool, tmp_path: Path) -> None:
    model, tokens = classifier(), tiny.tokenizer()
    if named:
        model.save_pretrained(tmp_path / "judge")
        tokens.save_pretrained(tmp_path / "judge")
    data = tiny.problems(0.5, each=12)
    if chat:
        data = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in data]
    trainer = tiny.trainer(
        tmp_path / "run",
        reward=[str(tmp_path / "judge") if named else model, tiny.lottery],
        reward_processing_classes=None if named else [tokens, None],
        data=data,
        score_batch_tokens=64,
        max_steps=1,
        sample_rows=4,
    )
    trainer.train()
    name = "judge" if named else "LlamaForSequenceClassification"
    line = tiny.lines(tmp_path / "run" / "metrics.jsonl")[0]
    assert line["grad_norm"] > 0
    assert f"rewards/{name}/mean" in line
    sample = tiny.lines(tmp_path / "run" / "samples.jsonl")[0]
    prompt, end = sample["prompt"], sample["response"]
    text = f"u:{prompt[0]['content']}\na:{end}\n" if chat else prompt + end
    ids = torch.tensor([tokens(text, add_special_tokens=False)["input_ids"]])
    model.config.pad_token_id = tokens.pad_token_id
    with torch.no_grad():
        alone = float(model.eval()(input_ids=ids).logits[0, 0])
    assert sample["rewards"][name] == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("name", ["nobody/nothing-at-all", "./missing/folder"])
def test_a_model_that_does_not_load_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInput, match="reward_funcs") as caught:
        tiny.trainer(tmp_path, reward=name)
    assert "sequence classifier" in caught.value.fix


def test_state_metrics_and_columns_are_as_in_trl(tmp_path: Path) -> None:
    steps = []

    def reward(completions, trainer_state, log_metric, log_extra, **_):
        steps.append(trainer_state.global_step)
        log_metric("mean_length", float(np.mean([len(text) for text in completions])))
        log_extra("shout", [text.upper() for text in completions])
        return first(completions)

    trainer = tiny.trainer(tmp_path, reward=reward, max_steps=2)
    trainer.train()
    assert steps == [0, 1]
    assert all(line["mean_length"] > 0 for line in tiny.lines(tmp_path / "metrics.jsonl"))
    logged = [line for line in trainer.state.log_history if "mean_length" in line]
    assert len(logged) == 2
    for sample in tiny.lines(tmp_path / "samples.jsonl"):
        assert sample["extra"]["shout"] == sample["response"].upper()
        assert sample["rewards"]["reward"] == sample["reward"]


class Leaving:
    """An object that ends the script where it is shown."""

    def __str__(self) -> str:
        sys.exit(0)


class Wordless:
    """An object that does not know how to show itself."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "value",
    [10**5000, CIRCLE, nested(5000), Leaving(), Wordless()],
    ids=["digits", "circle", "nested", "leaving", "wordless"],
)
def test_what_cannot_be_written_of_a_rollout_is_refused_by_its_column(value: Any) -> None:
    def reward(completions, log_extra, **_):
        log_extra("a", [value] * len(completions))
        return [0.0] * len(completions)

    with pytest.raises(InvalidInput) as caught:
        Rewards(reward)(["1+1="], ["2"], [[1]], {})
    assert caught.value.field == "log_extra('a')"
    assert "\n" not in str(caught.value)


# --- what functions must not be able to do --------------------------------------------------------


def test_a_function_cannot_change_prompts_and_columns() -> None:
    prompts = [[{"role": "user", "content": "1+1="}]]
    columns = {"tests": [[{"input": "1"}]], "array": [np.zeros(2)]}
    seen = []

    def spoiler(prompts, completions, tests, array, **_):
        seen.append((len(prompts[0]), len(tests[0]), float(array[0].sum())))
        prompts[0].append({"role": "assistant", "content": "2"})
        prompts[0][0]["content"] = "2"
        tests[0].append(0)
        array[0] += 1
        return [1.0]

    def same(**given: Any) -> Any:
        return spoiler(**given)

    Rewards([spoiler, same])(prompts, ["2"], [[1]], columns)
    assert prompts == [[{"role": "user", "content": "1+1="}]]
    assert columns["tests"] == [[{"input": "1"}]]
    assert seen == [(1, 1, 0.0)] * 2


def test_a_reward_that_appends_to_messages_changes_nothing(tmp_path: Path) -> None:
    """The answer would be in every later prompt."""
    data = tiny.problems(0.5, each=8)
    chats = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in data]

    def leaking(prompts, completions, answer, **_):
        for prompt, gold in zip(prompts, answer, strict=True):
            prompt.append({"role": "assistant", "content": gold})
        return first(completions)

    trainer = tiny.trainer(tmp_path, reward=leaking, data=chats, max_steps=3)
    trainer.train()
    assert all(len(record["prompt"]) == 1 for record in trainer.store.records)
    assert all(len(line["prompt"]) == 1 for line in tiny.lines(tmp_path / "samples.jsonl"))


def meddle(model: Any, state: Any) -> None:
    model.eval()
    model.requires_grad_(False)
    model(torch.tensor([[3]])).logits.requires_grad_().sum().backward()
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    state.max_steps, state.global_step = 1, 7
    state.log_history.clear()
    state.stateful_callbacks.clear()
    torch.set_grad_enabled(False)
    torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.use_deterministic_algorithms(True)
    np.seterr(all="raise")
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(200)
    sys.stdout = sys.stderr = None  # type: ignore[assignment]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")


def test_a_function_cannot_leave_the_policy_or_the_process_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = []
    for name, meddles in (("plain", False), ("run", True)):
        model, there = tiny.policy(), []

        def meddling(completions: list[str], trainer_state: Any, **_: Any) -> list[float | None]:
            values = first(completions)
            there.append((model.training, torch.is_grad_enabled(), sys.stdout, sys.stderr))  # noqa: B023
            there[-1] += tuple(map(signal.getsignal, (signal.SIGINT, signal.SIGTERM)))  # noqa: B023
            there[-1] += (logging.root.manager.disable, sys.getrecursionlimit(), os.getcwd())  # noqa: B023
            there[-1] += (torch.get_default_dtype(), torch.get_default_device())  # noqa: B023
            there[-1] += (torch.is_autocast_enabled("cpu"), str(np.geterr()))  # noqa: B023
            if meddles:  # noqa: B023
                meddle(model, trainer_state)  # noqa: B023
            return values

        saves = {"save_strategy": "steps", "save_steps": 3}
        trainer = tiny.trainer(name, reward=meddling, model=model, max_steps=3, **saves)
        trainer.train()
        weights.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
        assert len({one[1:] for one in there}) == 1
        assert len(tiny.lines(tmp_path / name / "metrics.jsonl")) == 3
    assert torch.equal(*weights)


def test_a_function_that_writes_to_the_weights_ends_the_run(tmp_path: Path) -> None:
    model = tiny.policy()

    def writing(completions: list[str], trainer_state: Any, **_: Any) -> list[float | None]:
        if trainer_state.global_step:
            model.load_state_dict({name: 0 * one for name, one in model.state_dict().items()})
        return first(completions)

    settings = {"reward": writing, "model": model, "save_strategy": "steps", "save_steps": 1}
    with pytest.raises(InvalidInput, match="reward_funcs = 'writing': wrote to the weights"):
        tiny.trainer(tmp_path, max_steps=3, **settings).train()
    assert verify(tmp_path / "checkpoint-1") is None


def test_leaving_the_program_is_an_error_and_not_the_end_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(
        "import sys\n\ndef reward(completions, **columns):\n    sys.exit(0)\n"
    )
    words = "train quickstart --reward leaving:reward --max-steps 1 --output-dir run"
    words += " --rollout-budget 16 --per-device-train-batch-size 16 --num-generations 8"
    path = {"PYTHONPATH": f"{tmp_path}:{Path(dare.__file__).parents[1]}"}
    ran = ranks.run("-m", "dare", *words.split(), folder=tmp_path, variables=path)
    assert ran.returncode == 2, ran.stderr
    assert "reward function reward = SystemExit(0)" in ran.stderr
    assert "leaving.py, line 4" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "done" not in ran.stdout
