"""Lines of JSON as a run writes them, also while it writes them."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput

Line = dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    """One object a line, each with a `step`; none where there is no file.

    A last line without its newline is still being written: it counts only if it is whole.
    Anything else that is broken is an error that names the line.
    """
    try:
        held = path.read_bytes()
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
