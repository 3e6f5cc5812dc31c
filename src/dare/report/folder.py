"""A run folder read back for its report, finished or under way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import yaml

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput
from dare.report import difficulty
from dare.report.found import Found
from dare.report.lines import Line, number, read_lines, values
from dare.report.selections import Selections, read_selections
from dare.report.text import legible, load_yaml

WATCHED = (
    "config.yaml",
    "metrics.jsonl",
    "selections.jsonl",
    "samples.jsonl",
    "landscape.jsonl",
    "eval.jsonl",
    "difficulty.parquet",
)
"""Files whose change makes a new report."""
_NAME = 80


@dataclass(frozen=True)
class RunData:
    """Everything a run has written, in order of steps."""

    name: str
    method: str
    seed: int
    folder: Path
    config: dict[str, Any]
    metrics: list[Line]
    selections: Selections
    samples: list[Line]
    landscape: list[Line]
    evaluations: list[Line]
    benchmarks: dict[str, Any]
    """What `dare eval` found, by the file it wrote."""
    table: pyarrow.Table | None

    @cached_property
    def step(self) -> Array:
        """Steps of the metrics."""
        return values(self.metrics, "step")

    @cached_property
    def tokens(self) -> Array:
        """Tokens generated until the end of each step."""
        return values(self.metrics, "generated_tokens_total")

    @cached_property
    def seconds(self) -> Array:
        """Seconds of all phases until the end of each step; evaluation is not counted."""
        spent = np.zeros(len(self.metrics))
        for place, line in enumerate(self.metrics):
            held = line.get("seconds")
            if isinstance(held, dict):
                spent[place] = np.nansum([number(value) for value in held.values()])
        return np.cumsum(spent)

    def curriculum(self, *keys: str) -> Any:
        """A setting of the curriculum, or None."""
        value: Any = self.config.get("curriculum")
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def training(self, key: str) -> Any:
        """A setting of training, or None."""
        held = self.config.get("training")
        return held.get(key) if isinstance(held, dict) else None


def read_run(found: Found) -> RunData:
    """Read the folder; what is missing is empty, what is broken is an error naming the place."""
    folder = found.folder
    config = _config(folder / "config.yaml")
    job = _json(folder / "job.json")
    training = config.get("training")
    training = training if isinstance(training, dict) else {}
    job = job if isinstance(job, dict) else {}
    method = found.method or job.get("name") or training.get("preset") or found.name
    seed = job.get("seed", training.get("seed", 0))
    return RunData(
        name=legible(found.name, _NAME),
        method=legible(str(method), _NAME),
        seed=seed if isinstance(seed, int) else 0,
        folder=folder,
        config=config,
        metrics=_one_a_step(read_lines(folder / "metrics.jsonl")),
        selections=read_selections(folder / "selections.jsonl"),
        samples=read_lines(folder / "samples.jsonl"),
        landscape=read_lines(folder / "landscape.jsonl"),
        evaluations=_one_a_step(read_lines(folder / "eval.jsonl")),
        benchmarks={str(p.relative_to(folder)): _json(p) for p in _benchmarks(folder)},
        table=difficulty.read(folder),
    )


def stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Changes whenever one of the watched files does."""
    found = []
    for path in [*(folder / name for name in WATCHED), *_benchmarks(folder)]:
        try:
            held = path.stat()
        except OSError:
            continue
        found.append((str(path), held.st_mtime_ns, held.st_size))
    return tuple(found)


def _benchmarks(folder: Path) -> list[Path]:
    """Figures of `dare eval`, written into the run folder or into one inside it."""
    return [*folder.glob("eval.json"), *sorted(folder.glob("*/eval.json"))]


def _one_a_step(lines: list[Line]) -> list[Line]:
    """In order of steps; where a step was written twice the later line counts."""
    return [line for _, line in sorted({line["step"]: line for line in lines}.items())]


def _config(path: Path) -> dict[str, Any]:
    try:
        held = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    # ValueError: a date that is none, say
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}"
        fix = f"cannot be read as YAML{place} ({type(error).__name__})"
        raise InvalidInput("run", str(path), fix) from None
    return held if isinstance(held, dict) else {}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        place = "" if line is None else f" at line {line}"
        fix = f"cannot be read as JSON{place} ({type(error).__name__})"
        raise InvalidInput("run", str(path), fix) from None
