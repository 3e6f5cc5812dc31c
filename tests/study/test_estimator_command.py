"""`dare study estimators` from a recipe: files, resuming, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
import typer
import yaml
from typer.testing import CliRunner

from dare import InvalidInput
from dare.commands.study import estimators, parse_steps, parse_variant
from dare.study import runner
from dare.study.estimator_runs import SeedJob
from dare.study.estimators import ESTIMATORS, EstimatorStudy, Measurement

app = typer.Typer()
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(estimators)

RECIPE = {
    "model": "pocket",
    "data": {"tasks": {"count": 20, "seed": 0}},
    "eval_data": {"tasks": {"count": 8, "seed": 1, "split": "test"}},
    "training": {
        "max_steps": 2,
        "rollout_budget": 32,
        "per_device_train_batch_size": 32,
        "max_completion_length": 24,
        "use_cpu": True,
        "eval_strategy": "steps",
        "eval_steps": 1,
    },
    "curriculum": {"cold_start.references": 4, "fresh_share": 0.5},
}
SMALL = ["--at", "1,2", "--prompts", "6", "--rollouts", "4"]


def call(*words: str) -> None:
    result = CliRunner().invoke(app, list(words), catch_exceptions=True)
    if result.exception is not None:
        raise result.exception


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("study")
    recipe = folder / "small.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    call(str(recipe), *SMALL, "--out", str(folder / "out"))
    return recipe, folder / "out"


def test_it_writes_figures_and_a_page(study: tuple[Path, Path]) -> None:
    _, out = study
    figures = json.loads((out / "estimators.json").read_text("utf-8"))
    assert set(figures["estimators"]) == set(ESTIMATORS)
    for line in figures["estimators"].values():
        assert line["mae_low"] <= line["mae"] <= line["mae_high"]
        assert set(line["by_step"]) == {"1", "2"}
    assert figures["intrinsic"]["mae"] == figures["estimators"]["current-fr"]["mae"]
    assert len(figures["ess_sweep"]) == 8
    assert figures["solutions"] is True
    assert "| dare |" in (out / "estimators.md").read_text("utf-8")
    assert not (out / "seed-42" / "run" / "eval.jsonl").exists()


def test_points_are_saved_as_they_come(
    study: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = json.loads((study[1] / "seed-42" / "points.json").read_text("utf-8"))["points"]
    saved = json.loads((study[1] / "seed-42" / "so-far.json").read_text("utf-8"))
    assert saved == {"seed": 42, "points": points}

    def die(self: EstimatorStudy, metrics: object) -> None:
        raise ZeroDivisionError("killed")

    monkeypatch.setattr(EstimatorStudy, "result", die)  # before anything is written at the end
    words = ["--estimators", "dare", *SMALL, "--out", str(tmp_path / "out")]
    with pytest.raises(ZeroDivisionError, match="killed"):
        call(str(study[0]), *words)
    saved = json.loads((tmp_path / "out" / "seed-42" / "so-far.json").read_text("utf-8"))
    assert [point["step"] for point in saved["points"]] == [1, 2]
    assert not (tmp_path / "out" / "seed-42" / "points.json").exists()


def test_finished_seeds_are_not_repeated_and_cut_off_ones_are(study: tuple[Path, Path]) -> None:
    recipe, out = study
    done = out / "seed-42" / "points.json"
    before = done.stat().st_mtime_ns
    cut_off = out / "seed-43" / "run"
    cut_off.mkdir(parents=True)
    (cut_off / "metrics.jsonl").write_text("{", encoding="utf-8")
    call(str(recipe), *SMALL, "--out", str(out), "--seeds", "2")
    assert done.stat().st_mtime_ns == before
    figures = json.loads((out / "estimators.json").read_text("utf-8"))
    assert figures["seeds"] == [42, 43]
    assert [run["seed"] for run in figures["runs"]] == [42, 43]


def test_seeds_side_by_side_find_the_same_and_a_failing_one_stops_no_other(
    study: tuple[Path, Path], tmp_path: Path
) -> None:
    recipe, out = study
    (tmp_path / "study.json").write_bytes((out / "study.json").read_bytes())
    (tmp_path / "seed-44").write_text("a file where a folder has to be", encoding="utf-8")
    words = [recipe, *SMALL, "--out", tmp_path, "--seeds", "3", "--workers", "2"]
    ended = forked.run("dare", "study", "estimators", *words)
    assert ended.returncode == 2, ended.stderr
    assert "seed-44" in ended.stderr
    for name in ("seed-42/points.json", "seed-43/points.json"):
        one, other = (
            json.loads((folder / name).read_text("utf-8"))["points"] for folder in (out, tmp_path)
        )
        for before, after in zip(one, other, strict=True):
            assert before["truth"] == after["truth"]
            assert before["estimates"] == after["estimates"]


def test_a_killed_run_is_told_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def process(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """In place of a run: the first seed is killed from outside, the other has its points."""
        folder = Path(command[-1])
        code = f"open({str(folder / 'points.json')!r}, 'w').close()"
        if folder.name == "seed-1":
            code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        return subprocess.Popen([sys.executable, "-c", code], **options)

    places = SimpleNamespace(Popen=process, PIPE=subprocess.PIPE)
    monkeypatch.setattr(runner, "subprocess", places)
    wanted = Measurement(at=(1, 3), variants={"K": {"estimator.name": "paper"}})
    killed, other = (
        SeedJob({"model": "pocket"}, wanted, seed, None, tmp_path / f"seed-{seed}")
        for seed in (1, 2)
    )
    outcome = runner.run_jobs([killed, other], workers=2)
    assert outcome.done == [other]
    assert [(job, reason[:12]) for job, reason in outcome.failed] == [(killed, "exit code -9")]
    assert SeedJob.load(killed.folder) == killed  # what its process is told


def test_another_study_or_strangers_files_are_left_alone(
    study: tuple[Path, Path], tmp_path: Path
) -> None:
    recipe, out = study
    with pytest.raises(InvalidInput, match="other settings"):
        call(str(recipe), "--at", "2", "--prompts", "6", "--rollouts", "4", "--out", str(out))
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"thesis\.tex"):
        call(str(recipe), *SMALL, "--out", str(tmp_path))


@pytest.mark.parametrize(
    "words",
    [["--at", "x"], ["--at", "0"], ["--at", "3"], ["--estimators", "dair"], ["--seeds", "0"]],
)
def test_bad_words_are_refused_before_anything_runs(
    study: tuple[Path, Path], tmp_path: Path, words: list[str]
) -> None:
    with pytest.raises(InvalidInput):
        call(str(study[0]), "--prompts", "6", *words, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_study_that_never_ran_gives_its_folder_up(
    study: tuple[Path, Path], tmp_path: Path
) -> None:
    words = [str(study[0]), "--at", "1", "--rollouts", "2", "--out", str(tmp_path / "out")]
    with pytest.raises(InvalidInput, match="references"):
        call(*words, "--prompts", "19")
    call(*words, "--prompts", "4", "--estimators", "previous-fr", "--steps", "1")
    figures = json.loads((tmp_path / "out" / "estimators.json").read_text("utf-8"))
    assert set(figures["estimators"]) == {"previous-fr", "current-fr"}
    assert figures["ess_sweep"] is None


def test_thirds_of_the_run_are_the_default() -> None:
    assert parse_steps("", 60) == (20, 40, 60)
    assert parse_steps("", 1) == (1,)
    assert parse_steps("9, 3,3", 10) == (3, 9)


def test_variants_are_the_runs_own_estimator_with_other_settings(
    study: tuple[Path, Path], tmp_path: Path
) -> None:
    recipe, _ = study
    variants = {
        "same": "--estimator.refresh_share 0.1",
        "budget": "--estimator.name paper --cold_start.temperature paper "
        "--buffer.rollouts_per_prompt 8",
        "flat": "--estimator.name paper --cold_start.temperature 100",
    }
    words = [word for name, text in variants.items() for word in ("--variant", f"{name}={text}")]
    chosen = ["--estimators", "dare,paper-budget", "--selection.sharpness", "4"]
    call(str(recipe), *SMALL, *chosen, *words, "--out", str(tmp_path / "out"))
    points = json.loads((tmp_path / "out" / "seed-42" / "points.json").read_text("utf-8"))
    for point in points["points"]:
        found = point["estimates"]
        assert found["same"] == found["dare"]
        assert found["budget"] == found["paper-budget"]
        assert found["flat"] != found["budget"]
    figures = json.loads((tmp_path / "out" / "estimators.json").read_text("utf-8"))
    assert set(figures["estimators"]) == {"dare", "paper-budget", "current-fr", *variants}
    kept = yaml.safe_load((tmp_path / "out" / "seed-42" / "run" / "config.yaml").read_text("utf-8"))
    assert kept["curriculum"]["selection"]["sharpness"] == 4


@pytest.mark.parametrize(
    "text",
    [
        "K8",
        "=--estimator.clip 2",
        "K8=",
        "K8=--model pocket",
        "K8=--estimator.clop 2",
        "K8=--seed 1",
    ],
)
def test_a_variant_must_change_the_estimate(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_variant(text)
