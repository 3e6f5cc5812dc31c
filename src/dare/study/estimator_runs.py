"""The estimator study from a recipe: a run a seed, finished ones never repeated."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dare.errors import InvalidInput, require
from dare.study.estimator_report import markdown
from dare.study.estimator_table import summarise
from dare.study.estimators import Measurement, watch
from dare.teacher_file import load_head
from dare.training.progress import RichProgress
from dare.training.recipe import build, curriculum_of

_FIRST_SEED = 42


def run_estimators(
    recipe: Mapping[str, Any],
    folder: Path,
    wanted: Measurement,
    seeds: int = 1,
    teacher: str | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Run what is missing, then write estimators.json and estimators.md; returns the figures.

    `teacher` is the file of a trained DOTS head; `workers` seeds run at a time.
    A seed whose `points.json` is there is finished; one that was cut off starts anew.
    """
    require(seeds >= 1, "--seeds", seeds, "needs at least 1")
    require(workers >= 1, "--workers", workers, "needs at least 1")
    first = int((recipe.get("training") or {}).get("seed", _FIRST_SEED))
    settings = {
        "recipe": dict(recipe),
        "curriculum": curriculum_of(recipe),
        "measurement": dataclasses.asdict(wanted),
        "teacher": None if teacher is None else [teacher, load_head(teacher).head.digest()],
    }
    _claim(folder, json.loads(json.dumps(settings, default=str)))
    every = range(first, first + seeds)
    missing = [seed for seed in every if not _points(folder, seed).is_file()]
    if workers > 1 and len(missing) > 1:
        _side_by_side(recipe, folder, wanted, missing, teacher, workers)
    else:
        for seed in missing:
            _run_into(recipe, folder, wanted, seed, teacher)
    runs = [json.loads(_points(folder, seed).read_text(encoding="utf-8")) for seed in every]
    figures = {
        "model": str(recipe.get("model", "pocket")),
        "preset": str(recipe.get("preset") or "dare"),
        "seeds": [run["seed"] for run in runs],
        "at": sorted(wanted.at),
        "prompts": len(runs[0]["points"][0]["prompt"]),
        "rollouts": wanted.rollouts,
        "solutions": runs[0]["solutions"],
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


def _points(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}" / "points.json"


def _run_into(
    recipe: Mapping[str, Any],
    folder: Path,
    wanted: Measurement,
    seed: int,
    teacher: str | None,
    show: bool = True,
) -> int:
    """One seed, written when it is complete."""
    done = _points(folder, seed)
    shutil.rmtree(done.parent, ignore_errors=True)
    _write(done, run_one(recipe, done.parent, wanted, seed, teacher, show=show))
    return seed


def _side_by_side(
    recipe: Mapping[str, Any],
    folder: Path,
    wanted: Measurement,
    seeds: Sequence[int],
    teacher: str | None,
    workers: int,
) -> None:
    """A process a seed; where one fails the others still finish, then its error is raised."""
    failed: list[Exception] = []
    bars = Progress(TextColumn("[bold]seeds"), BarColumn(), MofNCompleteColumn(), transient=True)
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads
    with bars, ProcessPoolExecutor(min(workers, len(seeds)), spawn, _one_thread) as pool:
        task = bars.add_task("", total=len(seeds))
        jobs = [
            pool.submit(_run_into, dict(recipe), folder, wanted, seed, teacher, False)
            for seed in seeds
        ]
        for job in as_completed(jobs):
            error = job.exception()
            if isinstance(error, Exception):
                failed.append(error)
            if isinstance(error, BrokenProcessPool):  # asked to stop, the others save and wait
                for process in multiprocessing.active_children():
                    process.kill()
            bars.advance(task)
    if failed:
        raise failed[0]


def _one_thread() -> None:
    """Runs side by side would wait for each other's threads."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)


def run_one(
    recipe: Mapping[str, Any],
    folder: Path,
    wanted: Measurement,
    seed: int,
    teacher: str | None = None,
    *,
    show: bool = True,
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
        "overwrite_output_dir": True,  # of a study that was ended before it noted its points
    }
    bar = [RichProgress(f"seed {seed}")] if show else []
    trainer = build({**recipe, "training": training}, callbacks=bar)
    trainer.quiet()
    processes = trainer.accelerator.num_processes
    require(processes == 1, "processes", processes, "run the study in one process")
    study = watch(
        trainer,
        wanted,
        trainer.policy_services().teacher(teacher),
        # Hours may lie between two points: what a killed run has measured can still be read.
        save=lambda points: _write(folder / "so-far.json", {"seed": seed, "points": points}),
    )
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
