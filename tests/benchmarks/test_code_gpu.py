"""code_gpu on the tiny policy: the data it divides, and a run from start to figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import code_gpu
import pytest

import tiny
from dare.errors import InvalidInput
from dare_sandbox import open_sandbox
from dare_sandbox.opening import DANGER

CALLS = ("double", "triple", "square", "negate", "halve", "invert", "round_up", "repeat")


def files(folder: Path) -> list[str]:
    """Problems of MBPP around the borders of its parts, and two of HumanEval."""
    mbpp = [
        {
            **{"id": f"mbpp/{n}", "problem": f"Number {n}: {CALLS[n % 8]} it.", "split": "any"},
            **{"tests": [f"assert {CALLS[n % 8]}(1) == {n}"], "test_setup_code": ""},
            "canonical_solution": f"def {CALLS[n % 8]}(x):\n    return {n}",
        }
        for n in (1, 10, 11, 12, 509, 510, 511, 512, 600, 601, 973, 974)
    ]
    mbpp[7]["problem"] = mbpp[2]["problem"]  # 512 repeats 11, which is evaluated
    humaneval = [
        {
            **{
                "id": f"HumanEval/{n}",
                "problem": f'def f{n}(x):\n    """Same."""\n',
                "entry_point": f"f{n}",
            },
            **{"canonical_solution": "    return x\n"},
            "tests": "def check(candidate):\n    assert candidate(1) == 1\n",
        }
        for n in range(2)
    ]
    arguments = []
    for name, rows in (("mbpp", mbpp), ("humaneval", humaneval)):
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        arguments += [f"--{name}", str(path)]
    return arguments


def test_nothing_that_is_evaluated_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DANGER, "1")
    options = code_gpu.parsed([*files(tmp_path), "--model", "m", "--out", "o"])
    task = code_gpu.task_of(options, open_sandbox("none"))

    def numbers(rows: list[dict[str, Any]]) -> list[int]:
        return [int(row["prompt"].split(":")[0].removeprefix("Number ")) for row in rows]

    assert numbers(task.rows) == [511, 600, 601, 973, 974]
    assert task.rows[0]["prompt"].endswith("```python\nassert repeat(1) == 511\n```")
    humaneval, others = task.sets
    assert numbers(others.rows) == [11, 12, 509, 510]
    assert [set(row) for row in humaneval.rows] == [{"prompt", "tests", "kind"}] * 2
    programs = [
        "```python\ndef f0(x):\n    return x\n```",
        "```python\ndef f1(x):\n    return 2\n```",
    ]
    columns = {name: [row[name] for row in humaneval.rows] for name in ("tests", "kind")}
    assert task.reward(programs, **columns) == [1.0, 0.0]


def test_a_pair_of_runs_and_what_the_sandbox_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.policy().save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    arguments = [
        *(*files(tmp_path), "--model", str(tmp_path / "model"), "--out", str(tmp_path / "out")),
        *("--arms", "grpo,dare:fresh_share=1.0:cold_start.references=2", "--steps", "1"),
        *("--rollouts", "32", "--tokens", "8", "--no-warm-up", "--sandbox", "none"),
    ]
    with pytest.raises(InvalidInput, match="all your rights"):  # asked for by name, and refused
        code_gpu.main(arguments)
    monkeypatch.setenv(DANGER, "1")
    code_gpu.main(arguments)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["failed"] == last["left"] == []
    assert len(last["runs"]) == 2
    for run in last["runs"].values():
        assert run["sandbox"] == "none"
        assert run["accuracy"] == {"humaneval": [0.0, 0.0], "mbpp-test": [0.0, 0.0]}
        assert run["unscored_share"] == 0.0
        assert 0 <= run["sandbox_s"] <= run["seconds"] + 0.1
