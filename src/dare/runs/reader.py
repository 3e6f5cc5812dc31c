"""A run folder read back, finished or under way: its lines, what each step drew, its settings."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput
from dare.runs import difficulty
from dare.runs.difficulty import TIERS
from dare.runs.files import read_json, read_whole, read_yaml
from dare.runs.folder import FILES
from dare.runs.found import Found
from dare.text import legible

Line = dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    """One object a line, each with a `step`; none where there is no file.

    A last line without its newline is still being written: it counts only if it is whole.
    Anything else that is broken is an error that names the line.
    """
    try:
        held = read_whole(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidInput("run", str(path), f"cannot be read ({error})") from None
    *whole, rest = held.split(b"\n")
    lines = [_parse(path, number, text) for number, text in enumerate(whole, start=1)]
    if rest.strip():
        with contextlib.suppress(InvalidInput):
            lines.append(_parse(path, len(whole) + 1, rest))
    return lines


def broken(path: Path, number: int, problem: str) -> InvalidInput:
    """The error for a line that is not what a run writes."""
    return InvalidInput("run", str(path), f"line {number} {problem}")


def values(lines: Sequence[Line], *keys: str) -> Array:
    """A number a line, found by one key or by nested ones; NaN where there is none."""
    found = np.full(len(lines), np.nan)
    for place, line in enumerate(lines):
        value: Any = line
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        found[place] = number(value)
    return found


def number(value: Any) -> float:
    """The value as a number, NaN where it is none (or beyond all measure)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        found = float(value)
    except OverflowError:
        return math.nan
    return found if math.isfinite(found) else math.nan


def known(value: Any) -> float | None:
    """The value as a number, None where it is none."""
    found = number(value)
    return None if math.isnan(found) else found


def inner_keys(lines: Sequence[Line], key: str) -> list[str]:
    """Keys of the objects under `key`, in order of appearance."""
    held = (line.get(key) for line in lines)
    return list(dict.fromkeys(str(k) for value in held if isinstance(value, dict) for k in value))


def _parse(path: Path, number: int, text: bytes) -> Line:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise broken(path, number, f"is not JSON ({type(error).__name__})") from None
    if not isinstance(record, dict):
        raise broken(path, number, f"is no object but {type(record).__name__}")
    step = record.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**53:
        raise broken(path, number, f"has no step that counts from 0 ({step!r:.40})")
    return record


_CODES = {name: code for code, name in enumerate(TIERS)}
_NUMBERS = {
    "difficulty_D": "difficulty",
    "group_size_D": "group_size",
    "failure_D": "failure_rate",
    "tokens_D": "tokens",
}


@dataclass(frozen=True)
class Selections:
    """Columns over all drawn prompts (D); `tokens_D` is NaN for runs that did not write it."""

    step_D: Array
    prompt_D: Array
    tier_D: Array
    difficulty_D: Array
    group_size_D: Array
    failure_D: Array
    tokens_D: Array

    def __len__(self) -> int:
        return len(self.step_D)


def read_selections(path: Path) -> Selections:
    """Read and check the file; every list of a line has an entry a prompt."""
    lines = read_lines(path)
    columns: dict[str, list[Any]] = {name: [] for name in Selections.__annotations__}
    for number, line in enumerate(lines, start=1):
        ids = line.get("prompt")
        if not isinstance(ids, list):
            raise broken(path, number, "has no list of prompts")
        try:
            tiers = [_CODES[name] for name in line["tier"]]
        except (KeyError, TypeError) as error:
            raise broken(path, number, f"has no tiers one knows ({error})") from None
        if len(tiers) != len(ids):
            raise broken(path, number, "has lists of unequal length")
        columns["prompt_D"] += map(str, ids)
        columns["tier_D"] += tiers
        columns["step_D"] += [line["step"]] * len(ids)
        for name, key in _NUMBERS.items():
            columns[name] += _numbers(path, number, line, key, len(ids))
    return Selections(
        step_D=np.array(columns["step_D"], np.int64),
        prompt_D=np.array(columns["prompt_D"], np.str_),
        tier_D=np.array(columns["tier_D"], np.int64),
        **{
            name: np.array(columns[name], np.float64)  # None becomes NaN
            for name in _NUMBERS
        },
    )


def _numbers(path: Path, number: int, line: Line, name: str, count: int) -> list[float | None]:
    if name == "tokens" and name not in line:  # runs of earlier versions
        return [None] * count
    held = line.get(name)
    plain = (int, float, type(None))
    if not isinstance(held, list) or not all(isinstance(value, plain) for value in held):
        raise broken(path, number, f"has no numbers in {name}")
    if len(held) != count:
        raise broken(path, number, "has lists of unequal length")
    if any(isinstance(value, int) and abs(value) > 2**53 for value in held):
        raise broken(path, number, f"has a number beyond all measure in {name}")
    return held


WATCHED = ("config.yaml", *FILES, "difficulty.parquet", "estimation.json")
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
    estimation: Any = None
    """The estimate against the truth at the end, where that was measured."""

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
    config = read_yaml(folder / "config.yaml")
    job = read_json(folder / "job.json")
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
        benchmarks={str(p.relative_to(folder)): read_json(p) for p in _benchmarks(folder)},
        table=difficulty.read(folder),
        estimation=read_json(folder / "estimation.json"),
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
