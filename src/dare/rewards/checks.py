"""Data that a reward can never score, found before anything is generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare.rewards.math import check_golds
from dare.rewards.math.reward import golds_of


def check_math_golds(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """(row, reason) for every gold that does not verify against itself."""
    columns = {name: [record.get(name) for record in records] for name in (records or [{}])[0]}
    golds = golds_of(columns.get("answer"), columns)
    found = [(row, f"{reason} ({golds[row]!r})") for row, reason in check_golds(golds)]
    # Rows of another task are judged by their tests.
    return [one for one in found if golds[one[0]] is not None or not records[one[0]].get("tests")]
