"""The mixture: half of each source, nothing that is evaluated, the same bytes every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import methods_gpu_data
import pytest
from methods_gpu_data import read_lines


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def problem(name: str, number: int, **more: Any) -> dict[str, Any]:
    text = f"What does the {name} of {number} come to?"
    return {"id": f"{name}/{number}", "problem": text, "answer": str(number), **more}


def arguments(folder: Path) -> list[str]:
    levels = [problem("cube", n) for n in range(20)]
    levels += [problem("cube", 3), problem("root", 1, answer=" "), problem("long" * 400, 1)]
    levels += [{"problem": "Area? [asy]draw();[/asy]", "answer": "1"}, problem("sum", 7)]
    scaler = [problem("half", n) for n in range(20)] + [problem("cube", n) for n in range(20)]
    solved = [problem("cube", n, solution=f"It is {n}.") for n in range(20)]
    evaluated = [{"problem": "What does   the SUM of 7 come to", "answer": "7"}]
    sources = (
        write(folder / "levels" / "a.jsonl", levels),
        write(folder / "scaler" / "b.jsonl", scaler),
    )
    return [
        *("--sources", ",".join(sources)),
        *("--solutions", write(folder / "solved" / "c.jsonl", solved)),
        *("--leave-out", write(folder / "test" / "d.jsonl", evaluated)),
        *("--prompts", "30"),
    ]


def test_half_of_each_without_what_is_no_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(tmp_path)
    for name in ("one.jsonl.gz", "two.jsonl.gz"):
        methods_gpu_data.main([*given, "--out", str(tmp_path / name)])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()
    rows = read_lines(tmp_path / "one.jsonl.gz")
    assert figures["rows"] == {"levels": 15, "scaler": 15}
    assert len({row["problem"] for row in rows}) == 30
    dropped = figures["dropped"]["levels"]
    assert (dropped["repeat"], dropped["no answer"], dropped["figure"]) == (1, 1, 1)
    assert (dropped["long"], dropped["evaluated"]) == (1, 1)
    assert figures["dropped"]["scaler"]["repeat"] == 15  # those that the first source gave
    for row in rows:
        cube = row["id"].startswith("cube")
        assert row["solution"] == (f"It is {row['answer']}." if cube else None)
    methods_gpu_data.main([*given, "--seed", "1", "--out", str(tmp_path / "three.jsonl")])
    assert read_lines(tmp_path / "three.jsonl") != rows


def test_too_few_problems_are_told(tmp_path: Path) -> None:
    given = [*arguments(tmp_path), "--prompts", "80", "--out", str(tmp_path / "out.jsonl")]
    with pytest.raises(SystemExit, match="levels has 20 usable problems, 40 are asked for"):
        methods_gpu_data.main(given)


def test_what_a_mixture_does_not_use_is_written_in_its_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "a train leaves the town of Lund at noon and goes north at sixty miles an hour until"
    test = [problem("cube", n, level="Level 2", secret="x") for n in range(6)]
    test += [problem("long" * 400, 1), {"problem": "Area? [asy]draw();[/asy]", "answer": "1"}]
    test += [problem("cube", 4), problem("root", 1, answer=" ")]
    test += [{"problem": f"{words} it meets another. When?", "answer": "3"}]
    used = [{"problem": "what does the  CUBE of 2 come to?", "answer": "2"}]
    used += [{"problem": f"Once {words} night. How far?", "answer": "9"}]
    given = [
        *("--sources", write(tmp_path / "test" / "a.jsonl", test)),
        *("--only-outside", write(tmp_path / "mixture" / "b.jsonl", used)),
        *("--out", str(tmp_path / "outside.jsonl.gz")),
    ]
    methods_gpu_data.main(given)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = read_lines(tmp_path / "outside.jsonl.gz")
    cubes = [problem("cube", n, level="Level 2") for n in (0, 1, 3, 4, 5)]
    assert rows == [*cubes, test[6], test[7]]  # figures and long ones are evaluated on
    assert (figures["rows"], figures["of"]) == (7, 11)
    dropped = {"used": 2, "repeat": 1, "no answer": 1, "answer cannot be verified": 0}
    assert figures["dropped"] == dropped
    with pytest.raises(SystemExit):  # neither evaluation sets nor a mixture
        methods_gpu_data.main([*given[:2], *given[4:]])
