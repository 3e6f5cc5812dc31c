"""Two training processes, each with its engine or sharing one, draw what one process draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import train_small

import tiny

SCRIPT = str(Path(train_small.__file__))
NAMES = ("reward", "length", "truncated", "prompts", "generated_tokens_total")


def told(folder: Path) -> list[Any]:
    """What was drawn, and what it earned, step by step."""
    records = tiny.lines(folder / "metrics.jsonl")
    return [
        tiny.lines(folder / "selections.jsonl"),
        [{name: record[name] for name in NAMES} for record in records],
        tiny.lines(folder / "eval.jsonl"),
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("alone")
    train_small.trainer(str(folder)).train()
    return told(folder)


@pytest.mark.parametrize("ranks", [1, 2])
def test_two_processes_draw_what_one_draws(ranks: int, alone: list[Any], tmp_path: Path) -> None:
    changes = json.dumps({"vllm_tensor_parallel_size": ranks})
    done = tiny.torchrun(SCRIPT, str(tmp_path), changes)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(f"ranks {ranks}\n") == 2
    assert told(tmp_path) == alone
