"""`dare teacher`: pass rates from a run, a head fitted to them, and what both refuse."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from typer.testing import CliRunner

from dare import InvalidInput, tasks
from dare.cli import app
from dare.teacher.file import load_head
from dare.teacher.rates import Columns, read_rates

DATA = {"tasks": {"count": 48, "seed": 7, "levels": [1, 2, 6]}}
RECIPE: dict[str, Any] = {
    "model": "pocket",
    "data": DATA,
    "training": {
        "max_steps": 3,
        "rollout_budget": 64,
        "per_device_train_batch_size": 32,
        "max_completion_length": 24,
        "use_cpu": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "save_steps": 1,
    },
}
MEASURE = ["--at", "0,2", "--prompts", "20", "--rollouts", "4"]
FIT = ["--references", "8", "--batch", "8", "--hidden", "8", "--steps", "20", "--held-out", "0.2"]


def call(*words: str) -> str:
    result = CliRunner().invoke(app, ["teacher", *words], catch_exceptions=True)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("teacher")
    recipe = folder / "small.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    call("measure", str(recipe), *MEASURE, "--out", str(folder / "rates.jsonl"))
    return recipe, folder / "rates.jsonl"


def test_measured_rates_are_of_training_prompts(measured: tuple[Path, Path]) -> None:
    rows = lines(measured[1])
    assert [row["policy"] for row in rows] == ["pocket@0"] * 20 + ["pocket@2"] * 20
    known = {problem["prompt"] for problem in tasks.generate(**DATA["tasks"])}
    assert len({row["prompt"] for row in rows}) == 40  # other prompts at each point
    assert {row["prompt"] for row in rows} <= known
    assert all(row["trials"] == 4 and row["pass_rate"] * 4 % 1 == 0 for row in rows)
    assert len({row["pass_rate"] for row in rows}) > 1
    assert [item.name for item in measured[1].parent.iterdir()].count("rates.jsonl.run") == 0


def test_a_measurement_goes_on_where_it_was_stopped(
    measured: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dare.study import pass_rates as measure

    out, real, asked = tmp_path / "rates.jsonl", measure.fresh_rollouts, []

    def fresh(trainer: Any, *rest: Any) -> Any:
        asked.append(trainer.state.global_step)
        if asked == [0, 2]:
            raise RuntimeError("stopped")
        return real(trainer, *rest)

    monkeypatch.setattr(measure, "fresh_rollouts", fresh)
    with pytest.raises(RuntimeError, match="stopped"):
        call("measure", str(measured[0]), *MEASURE, "--out", str(out))
    assert not out.exists()
    with pytest.raises(InvalidInput, match="other settings"):
        call("measure", str(measured[0]), "--at", "0,1", "--prompts", "20", "--out", str(out))
    call("measure", str(measured[0]), *MEASURE, "--out", str(out))
    assert asked == [0, 2, 2]
    assert lines(out) == lines(measured[1])


def test_prompts_of_another_recipe_are_left_out(
    measured: tuple[Path, Path], tmp_path: Path
) -> None:
    half = list(tasks.generate(**DATA["tasks"]))[:30]
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in half), encoding="utf-8"
    )
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump({"data": str(tmp_path / "data.jsonl")}), encoding="utf-8")
    words = ["--leave-out", str(other), "--out", str(tmp_path / "rates.jsonl"), "--rollouts", "2"]
    call("measure", str(measured[0]), "--at", "0", "--prompts", "10", "--max-steps", "1", *words)
    found = {row["prompt"] for row in lines(tmp_path / "rates.jsonl")}
    assert len(found) == 10
    assert found.isdisjoint(row["prompt"] for row in half)


@pytest.mark.parametrize(
    "words",
    [["--at", "x"], ["--at", "-1"], ["--at", "9"], ["--prompts", "1"], ["--prompts", "49"],
     ["--rollouts", "0"], ["--leave-out", "nothing"]],
)  # fmt: skip
def test_bad_words_leave_no_rates(
    measured: tuple[Path, Path], tmp_path: Path, words: list[str]
) -> None:
    with pytest.raises(InvalidInput):
        call("measure", str(measured[0]), *words, "--out", str(tmp_path / "rates.jsonl"))
    assert not (tmp_path / "rates.jsonl").exists()


def test_a_fitted_head_serves_a_run(measured: tuple[Path, Path], tmp_path: Path) -> None:
    recipe, rates = measured
    out = tmp_path / "head.safetensors"
    shown = call("fit", str(rates), *FIT, "--out", str(out))
    assert "mean of references" in shown
    assert "untrained head" in shown
    saved = load_head(out)
    assert saved.embedder == "pocket"
    assert saved.about["policies"] == ["pocket@0", "pocket@2"]
    assert saved.about["held_out_rows"] == 8
    from dare.training.recipe import build, change, load_recipe

    settings = change(
        load_recipe(str(recipe)), ["--preset", "dots", "--estimator.teacher", str(out)]
    )
    settings["training"]["output_dir"] = str(tmp_path / "run")
    trainer = build(
        {**settings, "curriculum": {**settings["curriculum"], "estimator.references": 4}}
    )
    trainer.first_plan()
    found = trainer.policy_services().teacher(str(out))
    assert found is not None
    assert found.digest() == saved.head.digest()


def test_fit_is_repeatable_and_says_the_same_as_json(
    measured: tuple[Path, Path], tmp_path: Path
) -> None:
    digests, figures = set(), []
    for name in ("a", "b"):
        out = tmp_path / name
        figures.append(json.loads(call("fit", str(measured[1]), *FIT, "--json", "--out", str(out))))
        digests.add(load_head(out).head.digest())
    assert len(digests) == 1
    assert figures[0] == figures[1] == load_head(tmp_path / "a").about
    errors = figures[0]["errors"]["head"]
    assert errors["bce"] > 0
    assert sum(line["prompts"] for line in figures[0]["calibration"]) == 8


def test_rates_are_read_from_any_kind_of_file(tmp_path: Path) -> None:
    rows = [
        {"problem": f"{i}+1=", "pass_rate": i / 4, "n": 4, "who": f"p{i % 2}"} for i in range(4)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    columns = Columns(prompt="problem", trials="n", policy="who")
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet"):
        found = read_rates([tmp_path / name], columns)
        assert found.prompts == [row["problem"] for row in rows]
        assert found.rate_P.tolist() == [0.0, 0.25, 0.5, 0.75]
        assert found.trials_P.tolist() == [4.0] * 4
        assert found.policy_P.tolist() == ["p0", "p1", "p0", "p1"]
    both = read_rates([tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"], Columns(prompt="problem"))
    assert both.policy_P.tolist() == ["a"] * 4 + ["b"] * 4
    assert both.trials_P.tolist() == [1.0] * 8


def row(**changes: Any) -> dict[str, Any]:
    return {"prompt": "1+1=", "pass_rate": 0.5, "trials": 8, **changes}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (row(pass_rate=1.5), r"line 2: pass_rate = 1\.5: must be in \[0, 1\]"),
        (row(pass_rate="x"), "line 2: pass_rate = 'x': must be a number"),
        (row(pass_rate=None), "line 2: pass_rate = None: must be a number"),
        (row(prompt=""), "line 2: prompt = '': must be a string"),
        (row(prompt=[{"role": "user"}]), "line 2: prompt = .*'content'"),
        (row(trials=0), r"line 2: trials = 0\.0: must be at least 1"),
        (
            {"problem": "1+1=", "pass_rate": 1},
            "--prompt-column = 'prompt': no such column.*problem",
        ),
        ({"prompt": "1+1="}, "--pass-rate-column = 'pass_rate': no such column"),
    ],
)
def test_bad_rates_are_named(tmp_path: Path, bad: dict[str, Any], words: str) -> None:
    text = "".join(json.dumps(each) + "\n" for each in (row(), bad))
    (tmp_path / "rates.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=words):
        read_rates([tmp_path / "rates.jsonl"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--references", "40"], "--references = 40: lower it below"),
        (["--steps", "0"], "--steps = 0"),
        (["--held-out", "1"], "--held-out"),
        (["--weight-decay", "-1"], "--weight-decay"),
        (["--dropout", "1"], "--dropout"),
        (["--embed", "none.npy"], "--embed = 'none.npy': there is no such file"),
        (["--embed", "./no-model"], "--embed"),
        (["--lr", "1e300"], "--lr"),
    ],
)
def test_a_fit_that_cannot_work_writes_nothing(
    measured: tuple[Path, Path], tmp_path: Path, words: list[str], expected: str
) -> None:
    with pytest.raises(InvalidInput, match=expected):
        call("fit", str(measured[1]), *FIT, *words, "--out", str(tmp_path / "head"))
    assert not list(tmp_path.iterdir())


def test_given_embeddings_need_a_row_a_rate(measured: tuple[Path, Path], tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 5))
    np.save(tmp_path / "e.npy", rows)
    np.save(tmp_path / "short.npy", rows[:39])
    call("fit", str(measured[1]), *FIT, "--embed", str(tmp_path / "e.npy"),
         "--out", str(tmp_path / "head"))  # fmt: skip
    saved = load_head(tmp_path / "head")
    assert (saved.embedder, saved.probes, saved.head.width) == ("e.npy", None, 5)
    with pytest.raises(InvalidInput, match="must have 40 rows"):
        call("fit", str(measured[1]), *FIT, "--embed", str(tmp_path / "short.npy"))


def test_the_estimator_study_takes_the_head(measured: tuple[Path, Path], tmp_path: Path) -> None:
    def study(teacher: Path) -> None:
        words = ["--steps", "1", "--at", "1", "--prompts", "6", "--rollouts", "2"]
        words += [
            "--estimators",
            "teacher",
            "--teacher",
            str(teacher),
            "--out",
            str(tmp_path / "s"),
        ]
        result = CliRunner().invoke(app, ["study", "estimators", str(measured[0]), *words])
        if result.exception is not None:
            raise result.exception

    with pytest.raises(InvalidInput, match="there is no such file"):
        study(tmp_path / "none")
    np.save(tmp_path / "e.npy", np.random.default_rng(0).normal(size=(40, 5)))
    call("fit", str(measured[1]), *FIT, "--embed", str(tmp_path / "e.npy"),
         "--out", str(tmp_path / "narrow"))  # fmt: skip
    with pytest.raises(InvalidInput, match=r"5 numbers, those here have 64"):
        study(tmp_path / "narrow")
    call("fit", str(measured[1]), *FIT, "--out", str(tmp_path / "head"))
    study(tmp_path / "head")
    figures = json.loads((tmp_path / "s" / "estimators.json").read_text("utf-8"))
    assert set(figures["estimators"]) == {"teacher", "current-fr"}
    kept = json.loads((tmp_path / "s" / "study.json").read_text("utf-8"))
    assert kept["teacher"] == [str(tmp_path / "head"), load_head(tmp_path / "head").head.digest()]
