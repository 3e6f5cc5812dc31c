"""Texts, files and recipes of strangers: shown as they are, and no code of theirs runs unasked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import dare
import ranks
import tiny
from dare import cli
from dare.runs.files import load_yaml
from dare.training.recipe import own_code

HOSTILE = "[/b]\x1b[31m[bold]"
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Call:
    """Runs `dare WORDS` in this process: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dare", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on data whose levels are markup and escapes."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    rows = enumerate(tiny.problems(0.5, each=12))
    data = [{**row, "level": HOSTILE if k % 2 else "2", "source": HOSTILE} for k, row in rows]
    settings = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 2}
    tiny.trainer(folder, data=data, eval_data=data[:4], **settings).train()
    return folder


@pytest.mark.parametrize("command", ["compare", "difficulty"])
def test_levels_are_shown_and_not_obeyed(command: str, run: Path, call: Call) -> None:
    code, shown, errors = call(command, str(run))
    assert code == 0, errors
    assert "\x1b" not in shown
    assert "[/b]␛[31m[bold]" in shown.replace("\n", "")


def test_errors_show_names_and_do_not_obey_them(run: Path, tmp_path: Path, call: Call) -> None:
    theirs = Path(shutil.copytree(run, tmp_path / "theirs"))
    line = json.loads((theirs / "metrics.jsonl").read_text().splitlines()[0])
    line["seconds"] = {f"{HOSTILE}\n\u202e": "x"}
    (theirs / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    code, _, errors = call("compare", str(theirs))
    assert code == 2
    assert "[/b]␛[31m[bold]" in errors
    assert "⟨U+202E⟩" in errors
    assert "\x1b" not in errors
    assert errors.count("\n") == 1


def test_a_dry_run_shows_prompts_as_they_are(tmp_path: Path, call: Call) -> None:
    rows = [{"prompt": f"{k} [/x]\x1b[2J", "answer": "1", "level": "[/red]"} for k in range(16)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--rollout-budget=64", "--per-device-train-batch-size=32", "--data=data.jsonl"]
    code, shown, errors = call("train", "--dry-run", *words)
    assert code == 0, errors
    assert "[/x]␛[2J" in shown
    assert "\x1b[2J" not in shown


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefghij", "bcdefghijk", strict=True)
)


def test_aliases_may_not_stand_for_more_than_is_written(run: Path, call: Call) -> None:
    with pytest.raises(yaml.YAMLError, match="aliases"):
        load_yaml(BOMB)
    with pytest.raises(yaml.YAMLError, match="aliases"):
        load_yaml("a: &a [*a]\n")
    chain = "".join(f"a{k}: &a{k} [*a{k - 1}]\n" for k in range(1, 3000))
    with pytest.raises(yaml.YAMLError):
        load_yaml(f"a0: &a0 [x]\n{chain}")
    assert load_yaml("a: &a [1, 2]\nb: *a\n<<: {c: 3}\n") == {"a": [1, 2], "b": [1, 2], "c": 3}
    assert load_yaml("") is None
    kept = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(BOMB)
    try:
        for command in (["report", str(run)], ["train", str(run / "config.yaml"), "--dry-run"]):
            code, _, errors = call(*command)
            assert code == 2
            assert "YAML" in errors
    finally:
        (run / "config.yaml").write_text(kept)


def test_code_that_a_recipe_names_is_found_wherever_it_stands() -> None:
    recipe = {
        "reward": ["math", "mine:reward"],
        "data": "file:of_data",
        "training": {
            "generator": "my.own:Engine",
            "model_init_kwargs": {"trust_remote_code": True},
        },
        "curriculum": {"estimator.name": "other:Thing", "estimator": {"name": "third:Thing"}},
    }
    names = ["mine:reward", "my.own:Engine", "other:Thing", "third:Thing", "trust_remote_code"]
    assert own_code(recipe) == names
    assert own_code({"reward": "dare.rewards:math_reward", "training": {"output_dir": "a/b"}}) == []


def test_no_code_of_a_recipe_runs_before_it_is_trusted(tmp_path: Path) -> None:
    """Nor does what lies in the working folder under the name of a library."""
    (tmp_path / "theirs.py").write_text("open('ran', 'w')\ndef reward(completions): return []\n")
    for library in ("torch", "dare_decoder", "dare_errors", "dare_verify"):
        (tmp_path / f"{library}.py").write_text("open('ran', 'w')\n")
    recipe = "reward: theirs:reward\ndata: {tasks: {count: 64, seed: 0}}\n"
    (tmp_path / "their.yaml").write_text(recipe + "training: {max_completion_length: 8}\n")
    root = str(Path(dare.__file__).parents[1])

    refused = subprocess.run(
        [sys.executable, "-m", "dare", "train", "their.yaml", "--dry-run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2
    assert "theirs:reward" in refused.stderr
    assert "--trust" in refused.stderr
    assert not (tmp_path / "ran").exists()
    words = ["-m", "dare", "train", "their.yaml", "--dry-run", "--trust"]
    path = {"PYTHONPATH": f"{root}:{tmp_path}"}
    trusted = ranks.run(*words, folder=tmp_path, variables=path)  # its libraries are known by then
    assert trusted.returncode == 0, trusted.stderr
    assert (tmp_path / "ran").exists()


BESIDE = {
    "train": "train their.yaml --output-dir out",
    "dry run": "train their.yaml --dry-run",
    "methods": "study methods --recipe their.yaml --presets grpo --tokens 100 --out out",
    "sweep": "study sweep --field eta --values 0 --recipe their.yaml --tokens 100 --out out",
    "estimators": "study estimators their.yaml --at 1 --out out",
    "measure": "teacher measure their.yaml --at 0 --preset dare --out out.jsonl",
    "plan": "plan their.yaml",
}
"""Every command that runs the code of a recipe."""
NAMED = {
    "reward": "theirs:reward",
    "data": {"tasks": {"count": 64, "seed": 0}},
    "eval_data": {"tasks": {"count": 8, "seed": 1}},
    "training": {"max_completion_length": 8, "max_steps": 1},
    "curriculum": {"estimator.name": "theirs:Estimator"},
}


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A stranger's recipe, with a module beside it that tells that it was run; where it was not."""
    (tmp_path / "theirs.py").write_text(
        "open('ran', 'w').close()\nraise SystemExit\n", encoding="utf-8"
    )
    write(tmp_path, NAMED)
    return tmp_path / "ran"


def write(folder: Path, recipe: dict[str, Any]) -> None:
    (folder / "their.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")


def asked(monkeypatch: pytest.MonkeyPatch, *, answer: bool) -> list[str]:
    """A terminal whose user answers so; what was asked."""
    questions = list[str]()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("typer.confirm", lambda text: questions.append(text) or answer)
    return questions


@pytest.mark.parametrize("command", BESIDE)
def test_every_command_asks_before_it_runs_or_writes_anything(
    command: str, theirs: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(theirs.parent.rglob("*"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    code, shown, errors = call(*BESIDE[command].split())
    assert (code, shown) == (2, "")
    assert "theirs:Estimator" in errors
    assert ("theirs:reward" in errors) == (command != "plan")  # which does not import it
    assert "read it, then add --trust" in errors
    questions = asked(monkeypatch, answer=False)
    assert call(*BESIDE[command].split())[0] == 2
    assert len(questions) == 1
    assert sorted(theirs.parent.rglob("*")) == before


@pytest.mark.parametrize("trust", [True, False], ids=["told", "asked"])
@pytest.mark.parametrize("command", BESIDE)
def test_what_is_trusted_goes_on_and_is_asked_once(
    command: str, trust: bool, theirs: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError("no process today")

    monkeypatch.setattr("dare.study.runner.subprocess", SimpleNamespace(Popen=refused, PIPE=None))
    questions = asked(monkeypatch, answer=True)
    words = ["--trust"] if trust else []
    _, _, errors = call(*BESIDE[command].split(), *words)
    assert len(questions) == (not trust)
    runs_apart = command in ("methods", "sweep")
    assert ("no process today" if runs_apart else "cannot be imported") in errors
    assert theirs.exists() != runs_apart


def test_a_plan_asks_for_an_estimator_alone(theirs: Path, call: Call) -> None:
    write(theirs.parent, {**NAMED, "curriculum": {}})
    code, _, errors = call("plan", "their.yaml")
    assert code == 0, errors
    training = {**NAMED["training"], "curriculum": {"estimator": {"name": "theirs:Estimator"}}}
    write(theirs.parent, {**NAMED, "curriculum": {}, "training": training})
    assert call("plan", "their.yaml")[0] == 2
    assert not theirs.exists()


@pytest.mark.parametrize("name", ["theirs", "theirs:", "theirs:re-ward", "theirs: reward"])
@pytest.mark.parametrize("part", ["reward", "curriculum"])
def test_what_was_not_asked_about_is_not_imported(
    part: str, name: str, theirs: Path, call: Call
) -> None:
    named = {"reward": "boxed", "curriculum": {}}
    named[part] = name if part == "reward" else {"estimator.name": name}
    write(theirs.parent, {**NAMED, **named})
    code, _, errors = call("train", "their.yaml", "--dry-run")
    assert code == 2
    assert repr(name) in errors
    assert not theirs.exists()


def test_what_lies_beside_a_recipe_without_code_is_no_library(theirs: Path, call: Call) -> None:
    """Such as a wandb.py, where `report_to` has transformers look for wandb."""
    write(theirs.parent, {**NAMED, "reward": "boxed", "curriculum": {}})
    assert call("plan", "their.yaml")[0] == 0
    assert str(theirs.parent) not in sys.path
    assert call("plan", "their.yaml", "--estimator.name", "theirs:Estimator")[0] == 2
    assert str(theirs.parent) in sys.path


def test_remote_code_is_named_whatever_stands_for_yes() -> None:
    for yes in (True, 1, [1], {"a": 1}):
        assert own_code({"training": {"model_init_kwargs": {"trust_remote_code": yes}}})


MISTAGGED = (
    *("!!bool x", "!!int ''", "!!int _", "!!int x", "!!float ''", "!!float _", "!!timestamp x"),
    *("2020-02-31", "{[]: 1}", "!!binary é", "!!set 3", "!!omap 3", "!!pairs [1]", "!!str [1]"),
    "0x" + "f" * 5000,
)


@pytest.mark.parametrize("text", MISTAGGED, ids=lambda text: text[:12])
def test_a_tag_that_does_not_fit_is_bad_yaml_wherever_it_stands(
    text: str, tmp_path: Path, call: Call
) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(f"a: 1\nsteps: {text}\n")
    code, shown, errors = call("train", "--learning-rate", text)
    assert (code, shown, errors.count("\n")) == (2, "", 1)
    assert "error: --learning-rate = " in errors
    Path("mine.yaml").write_text(f"training: {{learning_rate: {text}}}\n", encoding="utf-8")
    code, shown, errors = call("plan", "mine.yaml")
    assert (code, shown, errors.count("\n")) == (2, "", 1)
    assert "error: recipe = 'mine.yaml'" in errors
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(f"steps: {text}\n", encoding="utf-8")
    code, _, errors = call("report", "run")
    assert (code, errors.count("\n")) == (2, 1)
    assert "config.yaml" in errors
