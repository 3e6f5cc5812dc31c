"""`dare eval` as a user calls it, on the built-in policy."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from eval_worlds import lines, sums

from dare import cli, pocket
from dare.evaluation.records import RecordFile
from dare.evaluation.sources import locate, open_model
from dare.runs.checkpoint import seal

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setattr(sys, "argv", ["dare", "eval", *map(str, args)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_pocket_policy_end_to_end(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    common = ("--benchmarks", "tasks", "--max-tokens", 64, "--out", out)
    code, text, err = run("pocket", *common, "--limit", 12)
    assert code == 0, err
    assert "tasks by level" in text
    assert "12 problems here, the benchmark has 512" in err
    figures = json.loads((out / "eval.json").read_text())
    one = figures["benchmarks"]["tasks"]
    assert 0.2 < one["accuracy"] < 0.9
    assert 5 < one["tokens"] < 64
    # More problems are added; the ones that are there stay.
    before = (out / "records.jsonl").read_bytes()
    code, text, _ = run("pocket", *common, "--limit", 16, "--json")
    assert json.loads(text)["benchmarks"]["tasks"]["problems"] == 16
    assert (out / "records.jsonl").read_bytes().startswith(before)
    # Other settings are refused, unless the folder is begun anew.
    more = ("pocket", *common, "--limit", 2, "--samples", 3)
    code, text, err = run(*more)
    assert (code, text) == (2, "")
    assert "--samples = 3" in err or "--temperature" in err
    code, text, _ = run(*more, "--overwrite", "--json")
    assert json.loads(text)["benchmarks"]["tasks"]["pass_at_k"]["k"] == [1, 2, 3]


def test_a_run_folder_is_its_newest_checkpoint_with_its_system_prompt(
    run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "trained"
    shutil.copytree(pocket.path(), folder / "checkpoint-7")
    (folder / "checkpoint-7" / "manifest.json").write_text("{}")
    code, _, err = run(folder, "--benchmarks", "tasks")
    assert code == 2
    assert "nor a complete checkpoint" in err
    (folder / "checkpoint-7" / "manifest.json").unlink()
    shutil.move(folder / "checkpoint-7", folder / "staged")
    seal(folder / "staged", folder / "checkpoint-7")
    trained = {"system_prompt": "math", "chat_template_kwargs": {"enable_thinking": False}}
    (folder / "config.yaml").write_text(yaml.safe_dump({"training": trained}))
    assert locate(str(folder)).path == str(folder / "checkpoint-7")
    for name in (folder, folder / "checkpoint-7"):
        assert locate(str(name)).system_prompt == "math"
        assert locate(str(name)).chat_template_kwargs == trained["chat_template_kwargs"]
        tokenizer = open_model(locate(str(name))).tokenizer
        assert tokenizer.chat_template_kwargs == trained["chat_template_kwargs"]
    assert locate(str(folder)).weights == locate("pocket").weights
    out = tmp_path / "out"
    options = ("--benchmarks", "tasks", "--limit", 2, "--max-tokens", 8, "--out", out)
    code, _, err = run(folder, *options)
    assert code == 0, err
    assert "system prompt of the training run" in err
    assert json.loads((out / "settings.json").read_text())["template"] == "math"


def test_saved_responses_are_compared_and_shown_as_text(run: Run, tmp_path: Path) -> None:
    sums(tmp_path, 4)
    hostile = "\x1b[2J\x1b]0;owned\x07[red]<script>alert(1)</script>\u202e\x00 \\boxed{0}"
    for name, answers in (("a", [1, 3, 5, 0]), ("b", [1, 0, 0, 7])):
        rows = [{"id": f"s{n}", "response": rf"\boxed{{{x}}}"} for n, x in enumerate(answers)]
        if name == "b":
            rows[2]["response"] = hostile
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = ("--benchmarks", tmp_path / "sums.yaml", "--out", tmp_path / name)
        code, _, err = run("--responses", tmp_path / f"{name}.jsonl", *options)
        assert code == 0, err
    code, text, _ = run("show", tmp_path / "b", "--wrong", "--level", "3")
    assert code == 0
    assert "sums s2, response 1" in text
    assert "[red]<script>alert(1)</script>" in text
    assert not set(text) & {"\x1b", "\x07", "\x00", "\u202e"}
    code, text, _ = run("show", tmp_path / "b", "--wrong", "--limit", 1, "--skip", 1, "--json")
    assert json.loads(text)["id"] == "s2"
    code, text, _ = run("compare", f"one={tmp_path / 'a'}", f"two={tmp_path / 'b'}", "--json")
    found = json.loads(text)["sums"]
    assert found["difference"]["two"][0] == -0.25
    assert found["only"] == {"one": ["s1", "s2"], "two": ["s3"]}
    code, text, _ = run("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c.md")
    assert "problems solved by exactly" in text
    assert "| a | 2 |" in (tmp_path / "c.md").read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pocket", "--benchmarks", "gsm9k"], "did you mean 'gsm8k'"),
        ([], "Usage"),
        (["--benchmarks", "gsm8k"], "name a model, or a file with --responses"),
        (["./nowhere", "--benchmarks", "tasks"], "neither a folder with a model"),
        (["a--b/c", "--benchmarks", "tasks"], "neither a folder with a model"),
        (["pocket", "--benchmarks", "gsm8k", "--data-dir", "."], "gsm8k/test"),
        (["pocket", "--benchmarks", "tasks", "--samples", "2", "--temperature", "0"], "greedy"),
        (["pocket", "--benchmarks", "tasks", "--template", "mth"], "did you mean 'math'"),
        (["pocket", "--benchmarks", "tasks", "--dtype", "int4"], "--dtype"),
        (["pocket", "--benchmarks", "tasks", "--form", "program"], "--form"),
        (["show", "."], "has no records.jsonl"),
        (["compare", "."], "at least two"),
        (["compare", "a", "b", "--out", "x.html"], "must end in .json or .md"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*args)
    assert code == 2
    assert message in (err if args else out + err)
    assert not args or len(err.strip().splitlines()) == 1
    assert list(tmp_path.rglob("*.json*")) == []


def test_help_shows_the_options_and_the_other_commands(run: Run) -> None:
    code, text, _ = run("--help")
    assert code == 0
    assert "--samples" in text
    assert "dare eval show RUN" in text
    code, text, _ = run("list")
    assert "math500" in text
    assert "HuggingFaceH4/MATH-500" in text


def test_a_cut_line_in_the_middle_is_named(tmp_path: Path) -> None:
    file = RecordFile(tmp_path)
    file.append([{"id": "a"}])
    assert lines(file.path) == [{"id": "a"}]
    file.path.write_text('{"id": \n{"id": "b"}\n')
    from dare.errors import InvalidInput

    with pytest.raises(InvalidInput, match="line 1"):
        file.read()
