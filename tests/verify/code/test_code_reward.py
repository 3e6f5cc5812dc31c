"""The reward function, and TRL's trainer with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dare.errors import InvalidInput
from dare_sandbox import open_sandbox
from dare_verify.code import code_reward, make_code_reward
from tiny import policy, tokenizer

SUM = [{"input": "1 2", "output": "3"}, {"input": "3 4", "output": "7"}]
RIGHT = "So:\n```python\nprint(sum(map(int, input().split())))\n```\n"
HALF = "```python\nprint(3)\n```"
CUT = "```python\nprint(sum(map(int, input().split())))\n"


@pytest.fixture(autouse=True)
def _room() -> None:
    try:
        open_sandbox("auto")
    except InvalidInput as error:
        pytest.skip(str(error))


def test_binary_by_default() -> None:
    rewards = code_reward([RIGHT, HALF, CUT, "no idea"], [SUM] * 4)
    assert rewards == [1.0, 0.0, 0.0, 0.0]


def test_conversational_completions_and_other_columns() -> None:
    completions = [[{"role": "assistant", "content": text}] for text in (RIGHT, HALF)]
    found = code_reward(
        prompts=["p"] * 2,
        completions=completions,
        tests=[SUM] * 2,
        level=[1, 2],
        trainer_state=None,
    )
    assert found == [1.0, 0.0]


def test_partial_credit() -> None:
    assert make_code_reward(partial_credit=True)([RIGHT, HALF, CUT], [SUM] * 3) == [1.0, 0.5, 0.0]


def test_bare_completions() -> None:
    assert make_code_reward(bare=True)(["print(3)"], [SUM[:1]]) == [1.0]


def test_tests_may_be_json_and_say_their_kind() -> None:
    program = "```python\ndef f(x):\n    return [x, None]\n```"
    function = json.dumps([{"fn": "f", "args": [1], "output": [1, None]}])
    asserted = [{"code": "assert f(1) == [1, None]", "entry_point": "f", "input": None}]
    assert code_reward([program] * 2, [function, asserted]) == [1.0, 1.0]
    assert code_reward([program], [asserted], kind="assert") == [1.0]
    assert code_reward([program], [asserted], kind=["assert"]) == [1.0]


def test_rows_that_cannot_be_judged_are_none() -> None:
    assert code_reward([RIGHT] * 4, [[], None, "{", [{"input": "1"}]]) == [None] * 4


def test_trl_trains_with_it(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    seen: list[list[float | None]] = []

    def reward(completions: list[Any], **columns: Any) -> list[float | None]:
        # The tiny policy writes digits: make a program of them, so that some rows pass.
        wrapped = [
            [
                {
                    "role": "assistant",
                    "content": f"```python\nprint({len(c[-1]['content'])} % 2)\n```",
                }
            ]
            for c in completions
        ]
        seen.append(code_reward(wrapped, **columns))
        return seen[-1]

    rows = [
        {
            "prompt": [{"role": "user", "content": f"{n}+1="}],
            "tests": [{"input": "", "output": str(n % 2)}],
            "kind": "stdin",
        }
        for n in range(8)
    ]
    settings = trl.GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=8,
        max_steps=2,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    trainer = trl.GRPOTrainer(
        policy(),
        reward_funcs=[reward, code_reward],
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(),
    )
    trainer.train()
    assert len(seen) == 2
    assert {value for rewards in seen for value in rewards} == {0.0, 1.0}
    logged = trainer.state.log_history[0]
    assert logged["rewards/code_reward/mean"] == 0.0
