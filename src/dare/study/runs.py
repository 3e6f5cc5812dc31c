"""Finished runs read back from their folders, each with the method it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dare.config.nested import typed
from dare.errors import InvalidInput, require
from dare.report.found import study_order
from dare.report.lines import read_lines
from dare.report.text import load_yaml

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
    order = study_order(folder)

    def place(path: Path) -> tuple[int, str, int, str]:
        first = path.relative_to(folder).parts[0]
        rank = order.index(first) if first in order else len(order)
        return rank, first, len(path.name), path.name

    return sorted(found, key=place)


def _load(folder: Path) -> Run:
    evaluations = _lines(folder / "eval.jsonl", _EVALUATION)
    metrics = _lines(folder / "metrics.jsonl", _STEP)
    scored = [line for line in evaluations if line["accuracy"] is not None]
    if not scored or not metrics:
        raise InvalidInput("run", str(folder), "has no evaluation or no training step to compare")
    named = {"preset": folder.name, "seed": 0}
    if (folder / JOB).is_file():
        job = _mapping(folder / JOB)
        named = {"preset": job.get("name"), "seed": job.get("seed")}
    elif (folder / "config.yaml").is_file():
        named = _mapping(folder / "config.yaml").get("training") or {}
    method = typed(str, named.get("preset"), f"{folder}: the method's name")
    seed = typed(int, named.get("seed"), f"{folder}: seed")
    extra = folder / "estimation.json"
    estimation = None
    if extra.is_file():
        estimation = typed(dict[str, float | list[Any] | None], _mapping(extra), str(extra))
    return Run(method, seed, folder, scored, metrics, estimation)


# What a comparison reads of a line; the first two of each must be there.
_SCORES = {"accuracy": float | None, "tokens": float | None, "by_problem": list[float | None]}
_EVALUATION: dict[str, Any] = {"accuracy": float | None, "generated_tokens_total": float, **_SCORES}
_EVALUATION |= {"problem_set": str, "by_level": dict[str, dict[str, Any]]}
_STEP: dict[str, Any] = {"step": int, "generated_tokens_total": float, "seconds": dict[str, float]}
_STEP |= {"tokens": dict[str, float], "memory_mb": float, "varied_groups": float}


def _lines(path: Path, kinds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines of a log in order of steps, each with what is compared and of its kind; a step
    that was written twice counts as it was written last."""
    needed, found = list(kinds)[:2], dict[int, dict[str, Any]]()
    for place, line in enumerate(read_lines(path), start=1):
        where = f"{path} line {place}"
        made = {"step": line["step"], **_typed(line, kinds, needed, where)}
        for level, part in (made.get("by_level") or {}).items():
            made["by_level"][level] = _typed(part, _SCORES, ("accuracy", "tokens"), where)
        found[line["step"]] = made
    return [line for _, line in sorted(found.items())]


def _typed(
    part: Mapping[str, Any], kinds: Mapping[str, Any], needed: Sequence[str], where: str
) -> dict[str, Any]:
    for key in needed:
        require(key in part, where, dict(part), f"has no {key}")
    held = {key: kind for key, kind in kinds.items() if key in needed or part.get(key) is not None}
    made: dict[str, Any] = {
        key: typed(kind, part.get(key), f"{where}: {key}") for key, kind in held.items()
    }
    return made if "accuracy" not in kinds else {"tokens": None, **made}


def _mapping(path: Path) -> dict[str, Any]:
    """What a JSON or YAML file of a run holds."""
    try:
        held = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        fix = f"cannot be read ({type(error).__name__})"
        raise InvalidInput("run", str(path), fix) from None
    return typed(dict[str, Any], held, str(path))


def _settings(folder: Path) -> str:
    """The curriculum of a run without its seed, to tell equal methods from unequal ones."""
    path = folder / "config.yaml"
    held = _mapping(path).get("curriculum") if path.is_file() else None
    settings = {**(held if isinstance(held, dict) else {}), "seed": None}
    return json.dumps(settings, sort_keys=True, default=str)


def _check_seeds(runs: Sequence[Run]) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for run in runs:
        other = seen.setdefault((run.method, run.seed), run.folder)
        if other != run.folder:
            fix = f"is {run.method} with seed {run.seed} like {other}; write NAME=FOLDER"
            raise InvalidInput("run", str(run.folder), fix)
