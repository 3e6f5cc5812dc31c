"""Names that the system refuses: whatever wants the file, it is one line, no traceback."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dare.errors import InvalidInput
from dare.runs.files import check_out

Call = Callable[..., tuple[int, str, str]]


LONG = "x" * 300
ROW = '{"prompt": "a", "answer": "1", "pass_rate": 0.5}\n'
# Commands with a place for a path, and the name that the line has for it.
WORDS = [
    ("--resume", "train --resume {}"),
    ("recipe", "train {}.yaml"),
    ("data", "data inspect ~nobody-of-this-name/{}.jsonl"),
    ("MODEL", "eval ~nobody-of-this-name/{} --benchmarks tasks"),
    ("model", "plan mine.yaml --model ~nobody-of-this-name/{} --gpu 24GB"),
    ("data", "train --data {}.jsonl"),
    ("eval_data", "train --eval-data {}.jsonl"),
    ("data", "train named.yaml"),
    ("model", "train --model ./{}"),
    ("output_dir", "train --output-dir {}"),
    ("--accelerate", "train --accelerate {}.yaml"),
    ("reward", "train --reward {}"),
    ("model", "plan mine.yaml --model ./{} --gpu 24GB"),
    ("run", "report {}"),
    ("run", "compare {}"),
    ("run", "difficulty {}"),
    ("run", "difficulty {} --tier hard"),
    ("MODEL", "eval ./{} --benchmarks tasks"),
    ("--out", "eval pocket --benchmarks tasks --out {}"),
    ("--benchmarks", "eval pocket --benchmarks {}.yaml"),
    ("--data-dir", "eval pocket --benchmarks tasks --data-dir {} --out new"),
    ("--responses", "eval --responses {}.jsonl --benchmarks tasks"),
    ("run", "eval show {}"),
    ("run", "eval compare {} b"),
    ("--out", "eval compare a b --out {}.json"),
    ("data", "data inspect {}.jsonl"),
    ("data", "data prepare {}.jsonl --out new.jsonl"),
    ("--out", "data prepare rows.jsonl --out {}.jsonl"),
    ("--data-dir", "data prepare mine.yaml --data-dir {}"),
    ("--data", "init --data {}.jsonl"),
    ("--eval-data", "init --data rows.jsonl --eval-data {}.jsonl"),
    ("--out", "init --data rows.jsonl --out {}.yaml"),
    ("--model", "init --data rows.jsonl --model ./{}"),
    ("data", "teacher fit {}.jsonl"),
    ("--out", "teacher fit rows.jsonl --out {}"),
    ("--out", "teacher measure mine.yaml --at 0 --out {}.jsonl"),
    ("--out", "study methods --out {}"),
    ("--recipe", "study methods --recipe {}.yaml"),
    ("--out", "study estimators mine.yaml --out {}"),
    ("teacher", "study estimators mine.yaml --teacher {} --out new"),
    ("--folder", "quickstart --folder {}"),
    ("--out", "report a --out {}.html"),
    ("--out", "compare a --out {}"),
    ("--out", "difficulty a --out {}.csv"),
]


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that may not be searched, as another user's is; root may search all."""
    Path("locked").mkdir()
    real_stat, real_access = os.stat, os.access

    def stat(path: Any, *given: Any, **named: Any) -> Any:
        if isinstance(path, (str, Path)) and "locked/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real_stat(path, *given, **named)

    def access(path: Any, *given: Any, **named: Any) -> bool:
        return not str(path).endswith("locked") and real_access(path, *given, **named)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", access)
    return "locked/held"


@pytest.mark.parametrize("kind", ["locked", "long"])
@pytest.mark.parametrize(("field", "words"), WORDS, ids=[words for _, words in WORDS])
def test_a_path_that_the_system_refuses_is_one_line_that_names_it(
    field: str, words: str, kind: str, dare: Call, request: pytest.FixtureRequest
) -> None:
    Path("rows.jsonl").write_text(ROW * 8, encoding="utf-8")
    Path("mine.yaml").write_text("data: {tasks: {count: 8}}\n", encoding="utf-8")
    Path("a").mkdir()
    name = LONG if kind == "long" else request.getfixturevalue("locked")
    text = yaml.safe_dump({"data": f"{name}.jsonl"})
    Path("named.yaml").write_text(text, encoding="utf-8")
    before = {*os.listdir()}
    code, _, errors = dare(*words.format(name).split(" "))
    lines = [line for line in errors.splitlines() if not line.startswith("[transformers]")]
    assert (code, len(lines)) == (2, 1), errors
    named = lines[0].removeprefix("error: ").partition(" = ")[0].replace("-", "_")
    assert field.strip("-").replace("-", "_").lower() in named.lower()
    assert {*os.listdir()} == before


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("init --data rows.jsonl --out /", "--out = '/': must end in .yaml or .yml"),
        ("teacher fit rows.jsonl --out /", "--out = '/': is a folder; name a file in it"),
        ("teacher measure --at 0 --out /", "--out = '/': is a folder; name a file in it"),
        ("study estimators --out /", "--out = '/ ("),
        ("quickstart --folder /", "folder = '/ ("),
    ],
)
def test_the_root_of_all_folders_is_refused_like_any_other(
    words: str, line: str, dare: Call
) -> None:
    code, _, errors = dare(*words.split())
    assert (code, errors.count("\n")) == (2, 1), errors
    assert errors.startswith(f"error: {line}")


def test_a_folder_that_is_there_may_be_written_to_whatever_it_lies_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "held" / "out", os.access
    out.mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, how: Path(path) == out and real(path, how))
    check_out(out, folder=True)
    with pytest.raises(InvalidInput, match="cannot be written to"):
        check_out(out.with_name("other"), folder=True)


@pytest.mark.parametrize("text", ["a\0", "\ud800"], ids=["null", "half"])
@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("--folder", "quickstart --folder {}"),
        ("--out", "teacher measure mine.yaml --at 0 --out={}.jsonl"),
        ("--data", "init --data {} --out new.yaml"),
        ("--learning-rate", "train --learning-rate {}"),
        ("argument", "report {}"),
    ],
)
def test_what_is_no_text_is_refused_before_anything_is_read(
    field: str, words: str, text: str, dare: Call
) -> None:
    code, shown, errors = dare(*words.format(text).split(" "))
    assert (code, shown, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"error: {field} = ")
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["report", "mine"], "argument"),
        (["compare", "--json", "mine"], "argument"),
        (["eval", "show", "--no-such", "mine"], "--no-such"),
        (["report", "--out=mine/x"], "--out"),
        (["report"], "file"),
    ],
)
def test_a_file_that_nobody_expected_to_fail_is_named_with_its_option(
    words: list[str], field: str, dare: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dare import cli

    def fail(**_: Any) -> None:
        raise PermissionError(13, "Permission denied", os.path.abspath("mine/x"))

    monkeypatch.setattr(cli, "app", fail)
    code, shown, errors = dare(*words)
    assert (code, shown, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"error: {field} = ")
    assert errors.endswith("mine/x': cannot be used (Permission denied)\n")
