"""The estimator study from a recipe: a run a seed, finished ones never repeated."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput, require
from dare.study.estimator_report import markdown
from dare.study.estimator_table import summarise
from dare.study.estimators import Measurement, watch
from dare.teacher_file import load_head
from dare.training.progress import RichProgress
from dare.training.recipe import build

_FIRST_SEED = 42


def run_estimators(
    recipe: Mapping[str, Any],
    folder: Path,
    wanted: Measurement,
    seeds: int = 1,
    teacher: str | None = None,
) -> dict[str, Any]:
    """Run what is missing, then write estimators.json and estimators.md; returns the figures.

    `teacher` is the file of a trained DOTS head.
    A seed whose `points.json` is there is finished; one that was cut off starts anew.
    """
    require(seeds >= 1, "--seeds", seeds, "needs at least 1")
    first = int((recipe.get("training") or {}).get("seed", _FIRST_SEED))
    settings = {
        "recipe": dict(recipe),
        "measurement": dataclasses.asdict(wanted),
        "teacher": None if teacher is None else [teacher, load_head(teacher).head.digest()],
    }
    _claim(folder, json.loads(json.dumps(settings, default=str)))
    runs = []
    for seed in range(first, first + seeds):
        done = folder / f"seed-{seed}" / "points.json"
        if not done.is_file():
            shutil.rmtree(done.parent, ignore_errors=True)
            _write(done, run_one(recipe, done.parent, wanted, seed, teacher))
        runs.append(json.loads(done.read_text(encoding="utf-8")))
    figures = {
        "model": str(recipe.get("model", "pocket")),
        "preset": str(recipe.get("preset") or "dare"),
        "seeds": [run["seed"] for run in runs],
        "at": sorted(wanted.at),
        "prompts": len(runs[0]["points"][0]["prompt"]),
        "rollouts": wanted.rollouts,
        "foresight": runs[0]["foresight"],
        **summarise(runs),
        "runs": [
            {
                "seed": run["seed"],
                "run_generated_tokens": run["run_generated_tokens"],
                "truth_tokens": sum(point["truth_tokens"] for point in run["points"]),
            }
            for run in runs
        ],
    }
    _write(folder / "estimators.json", figures)
    (folder / "estimators.md").write_text(markdown(figures), encoding="utf-8")
    return figures


def run_one(
    recipe: Mapping[str, Any],
    folder: Path,
    wanted: Measurement,
    seed: int,
    teacher: str | None = None,
) -> dict[str, Any]:
    """One run under the eyes of all estimators.

    The recipe's evaluation and checkpoints are left out: they change nothing that is measured.
    """
    training = {
        **(recipe.get("training") or {}),
        "output_dir": str(folder / "run"),
        "seed": seed,
        "disable_tqdm": True,
        "eval_strategy": "no",
        "eval_on_start": False,
        "load_best_model_at_end": False,
        "save_strategy": "no",
    }
    trainer = build({**recipe, "training": training}, callbacks=[RichProgress(f"seed {seed}")])
    trainer.quiet()
    processes = trainer.accelerator.num_processes
    require(processes == 1, "processes", processes, "run the study in one process")
    study = watch(trainer, wanted, trainer.policy_services().teacher(teacher))
    trainer.train()
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return study.result([json.loads(line) for line in lines])


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """A folder belongs to one study; another's, or a stranger's, is left alone."""
    path = folder / "study.json"
    strangers = [item.name for item in folder.iterdir()] if folder.is_dir() else []
    if path.is_file():
        if json.loads(path.read_text(encoding="utf-8")) == settings:
            return
        fix = "holds a study with other settings; choose another folder"
        finished = list(folder.glob("seed-*/points.json"))
        require(not finished, "--out", str(folder), fix)  # nothing would be lost otherwise
    elif strangers:
        shown = f"{folder} ({strangers[0]}, ...)"
        raise InvalidInput("--out", shown, "holds other files; choose another folder")
    _write(path, settings)


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """JSON that is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)
