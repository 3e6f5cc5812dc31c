"""Finished runs read back from their folders, each with the method it belongs to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dare.errors import InvalidInput

JOB, DONE = "job.json", "done.json"
"""Files that mark the run folder of a study: what it is to do, and that it is done."""


@dataclass(frozen=True)
class Run:
    """One run: its evaluations and its steps, as the run folder holds them."""

    method: str
    seed: int
    folder: Path
    eval: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    estimation: dict[str, Any] | None = None


def load_runs(words: Sequence[str | Path]) -> tuple[list[Run], list[Path]]:
    """The runs in these folders, and those left out because a study has not finished them.

    A word is a run folder, a folder of such folders, or NAME=FOLDER to name the method. Without
    a name, runs of a study are called as in the study and others after their preset; presets
    that ran with several settings after their folders.
    """
    runs: list[Run] = []
    unfinished: list[Path] = []
    plain: dict[Path, tuple[str, str]] = {}
    for word in words:
        name, folder = _named(str(word))
        for path in _run_folders(folder):
            if (path / JOB).is_file() and not (path / DONE).is_file():
                unfinished.append(path)
                continue
            run = _load(path)
            if run.folder in [other.folder for other in runs]:
                raise InvalidInput("run", str(path), "is named twice")
            if name is None and not (path / JOB).is_file():
                plain[path] = (run.method, _settings(path))
            runs.append(run if name is None else replace(run, method=name))
    if not runs:
        fix = "holds no finished run (a folder with eval.jsonl and metrics.jsonl)"
        raise InvalidInput("run", [str(word) for word in words], fix)
    for path, (method, _) in plain.items():
        if len({settings for other, settings in plain.values() if other == method}) > 1:
            runs = [replace(run, method=path.name) if run.folder == path else run for run in runs]
    _check_seeds(runs)
    return runs, unfinished


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs of each method in order of seed; methods in order of appearance."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    return {name: sorted(group, key=lambda run: run.seed) for name, group in groups.items()}


def _named(word: str) -> tuple[str | None, Path]:
    if Path(word).is_dir():
        return None, Path(word)
    name, equals, rest = word.partition("=")
    folder = Path(rest if equals else word)
    if not folder.is_dir():
        raise InvalidInput("run", word, "there is no such folder")
    return name, folder


def _run_folders(folder: Path) -> list[Path]:
    """The folder itself where it is a run; otherwise every run under it, in the study's order."""
    if (folder / "eval.jsonl").is_file() or (folder / JOB).is_file():
        return [folder]
    found = {path.parent for name in ("eval.jsonl", JOB) for path in folder.glob(f"*/**/{name}")}
    order: list[str] = []
    listed = folder / "study.json"
    if listed.is_file():
        order = json.loads(listed.read_text(encoding="utf-8"))["methods"]

    def place(path: Path) -> tuple[int, str, int, str]:
        first = path.relative_to(folder).parts[0]
        rank = order.index(first) if first in order else len(order)
        return rank, first, len(path.name), path.name

    return sorted(found, key=place)


def _load(folder: Path) -> Run:
    evaluations, metrics = _lines(folder / "eval.jsonl"), _lines(folder / "metrics.jsonl")
    scored = [line for line in evaluations if line["accuracy"] is not None]
    if not scored or not metrics:
        raise InvalidInput("run", str(folder), "has no evaluation or no training step to compare")
    job, config = folder / JOB, folder / "config.yaml"
    if job.is_file():
        values = json.loads(job.read_text(encoding="utf-8"))
        method, seed = values["name"], values["seed"]
    elif config.is_file():
        training = yaml.safe_load(config.read_text(encoding="utf-8"))["training"]
        method, seed = training["preset"], training["seed"]
    else:
        method, seed = folder.name, 0
    extra = folder / "estimation.json"
    estimation = json.loads(extra.read_text(encoding="utf-8")) if extra.is_file() else None
    return Run(str(method), int(seed), folder, scored, metrics, estimation)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _settings(folder: Path) -> str:
    """The curriculum of a run without its seed, to tell equal methods from unequal ones."""
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    settings = {**config.get("curriculum", {}), "seed": None}
    return json.dumps(settings, sort_keys=True, default=str)


def _check_seeds(runs: Sequence[Run]) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for run in runs:
        other = seen.setdefault((run.method, run.seed), run.folder)
        if other != run.folder:
            fix = f"is {run.method} with seed {run.seed} like {other}; write NAME=FOLDER"
            raise InvalidInput("run", str(run.folder), fix)
