"""Finished runs read back to be compared, each with the method it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dare.config.nested import typed
from dare.errors import InvalidInput, require
from dare.runs.files import read_json, read_yaml
from dare.runs.folder import plain
from dare.runs.found import named, runs_under
from dare.runs.reader import read_lines

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
        name, folder = named(str(word))
        for path in runs_under(folder, ("eval.jsonl", JOB)):
            if (path / JOB).is_file() and not (path / DONE).is_file():
                unfinished.append(path)
                continue
            run = _load(path)
            if run.folder in [other.folder for other in runs]:
                raise InvalidInput("run", str(path), "is named twice")
            if name is None and not (path / JOB).is_file():
                plain[path] = (run.method, settings_of(read_yaml(path / "config.yaml")))
            runs.append(run if name is None else replace(run, method=name))
    if not runs:
        fix = "holds no finished run with an evaluation (eval.jsonl): train with eval_data"
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


def _load(folder: Path) -> Run:
    evaluations = _lines(folder / "eval.jsonl", _EVALUATION)
    metrics = _lines(folder / "metrics.jsonl", _STEP)
    scored = [line for line in evaluations if line["accuracy"] is not None]
    if not scored or not metrics:
        raise InvalidInput("run", str(folder), "has no evaluation or no training step to compare")
    about = {"preset": folder.name, "seed": 0}
    if (folder / JOB).is_file():
        job = _mapping(folder / JOB)
        about = {"preset": job.get("name"), "seed": job.get("seed")}
    elif (folder / "config.yaml").is_file():
        training = read_yaml(folder / "config.yaml").get("training")
        about = training if isinstance(training, dict) else {}
    method = typed(str, about.get("preset"), f"{folder}: the method's name")
    seed = typed(int, about.get("seed"), f"{folder}: seed")
    extra, estimation = folder / "estimation.json", None
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
    return typed(dict[str, Any], read_json(path), str(path))


def settings_of(config: Mapping[str, Any]) -> str:
    """The curriculum of a run without its seed, to tell equal methods from unequal ones."""
    held = config.get("curriculum")
    settings = {**(held if isinstance(held, dict) else {}), "seed": None}
    return json.dumps(plain(settings), sort_keys=True)  # a key may be any value of YAML


def _check_seeds(runs: Sequence[Run]) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for run in runs:
        other = seen.setdefault((run.method, run.seed), run.folder)
        if other != run.folder:
            fix = f"is {run.method} with seed {run.seed} like {other}; write NAME=FOLDER"
            raise InvalidInput("run", str(run.folder), fix)
