"""Prompts whose truth is tests get hints in a run, worded for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from dare.curriculum import Services
from dare.curriculum.rollouts import Conditioning
from dare.training.prompts import PromptStore

PROGRAM = "def add(a, b):\n    total = a\n    total += b\n    return total\n"
RESPONSE = f"Keep a total and add each number to it.\n```python\n{PROGRAM}```\n"


def test_hard_prompts_with_tests_are_hinted_in_a_run(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"{i}+1=", "tests": '["assert add(1, 1) == 2"]', "chance": 0.12}
        for i in range(8)
    ]
    trainer = tiny.trainer(
        tmp_path,
        data=rows,
        services=Services(decode=lambda tokens: RESPONSE),
        rollout_budget=48,
        per_device_train_batch_size=48,
        max_steps=2,
        curriculum={
            **tiny.CLASSIC,
            "cold_start.train": False,
            "fresh_share": 1.0,
            "hard.above": 0.4,
        },
    )
    shown = []
    collect = trainer.collector.shown

    def watched(row: int, conditioning: int, hint: list[str]) -> object:
        if conditioning == Conditioning.HINTED:
            shown.append(hint)
        return collect(row, conditioning, hint)

    trainer.collector.shown = watched
    trainer.train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["rollouts_hinted"] for line in lines) > 0
    assert shown
    assert all(
        hint == ["Keep a total and add each number to it.", "It begins with `total = a`"]
        for hint in shown
    )


@pytest.mark.parametrize("system", [None, "math", "code", "Be brief."])
def test_a_hint_asks_for_a_program_where_tests_judge(system: str | None) -> None:
    rows = [{"prompt": "Add two numbers.", "tests": ["assert add(1, 1) == 2"]}]
    store = PromptStore(rows, tiny.tokenizer(), system)
    asked = store.messages(0, Conditioning.HINTED, ["Keep a total"])[-1]["content"]
    assert "1. Keep a total" in asked
    assert asked.endswith("```python block.")
    assert "boxed" not in asked
    answered = PromptStore([{**rows[0], "answer": "2"}], tiny.tokenizer(), system)
    other = answered.messages(0, Conditioning.HINTED, ["Keep a total"])[-1]["content"]
    assert other.endswith(r"\boxed{}.") == (system != "code")
