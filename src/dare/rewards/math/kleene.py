"""Logic with three values, None being unknown, and the matching of two unordered collections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Verdict = bool | None


def every(values: Iterable[Verdict]) -> Verdict:
    """False if any is; otherwise unknown if any is."""
    known = True
    for value in values:
        if value is False:
            return False
        known = known and value is not None
    return True if known else None


def some(values: Iterable[Verdict]) -> Verdict:
    """True if any is; otherwise unknown if any is."""
    known = True
    for value in values:
        if value is True:
            return True
        known = known and value is not None
    return False if known else None


def paired(
    first: Sequence[Any], second: Sequence[Any], same: Callable[[Any, Any], Verdict]
) -> Verdict:
    """Can the two be paired off, each with one that is the same?"""
    if len(first) != len(second):
        return False
    table = [[same(a, b) for b in second] for a in first]
    if _perfect(table, (True,)):
        return True
    return None if _perfect(table, (True, None)) else False


def _perfect(table: list[list[Verdict]], allowed: tuple[Verdict, ...]) -> bool:
    """Is there a perfect matching along the allowed entries? (augmenting paths)"""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, value in enumerate(table[row]):
            if value in allowed and column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(table)))
