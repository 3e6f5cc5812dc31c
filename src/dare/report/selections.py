"""What each step drew: the lines of selections.jsonl as flat columns, one row a drawn prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.report.difficulty import TIERS
from dare.report.lines import Line, broken, read_lines

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
