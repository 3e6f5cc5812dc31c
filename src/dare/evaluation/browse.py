"""Picking records to look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dare.errors import InvalidInput, suggest
from dare.evaluation.records import CUT, Record

_RIGHT = 1.0 - 1e-9
KINDS = ("right", "wrong", "unscored", "truncated", "disagree")


@dataclass(frozen=True)
class Wanted:
    """Conditions on records (benchmark, level, subject, id, words) and on single responses."""

    benchmark: str | None = None
    level: tuple[str, ...] = ()
    subject: str | None = None
    id: str | None = None
    contains: str | None = None
    kinds: tuple[str, ...] = ()
    """A response must be of every one of these KINDS."""


def pick(records: Iterable[Record], wanted: Wanted) -> Iterator[tuple[Record, list[int]]]:
    """Records that fit, each with the places of its responses that do."""
    for record in records:
        if _fits(record, wanted):
            places = [
                place
                for place in range(len(record["scores"]))
                if all(_is(record, place, kind) for kind in wanted.kinds)
            ]
            if places:
                yield record, places


def check(records: Iterable[Record], wanted: Wanted) -> None:
    """Refuse names that no record has."""
    records = list(records)
    for field, given in (
        ("benchmark", (wanted.benchmark,)),
        ("level", wanted.level),
        ("subject", (wanted.subject,)),
    ):
        known = {str(record[field]) for record in records if record[field] is not None}
        for name in given:
            if name is not None and name not in known:
                fix = suggest(name, known) if known else f"no record has a {field}"
                raise InvalidInput(f"--{field}", name, fix)


def verdict(record: Record, place: int) -> str:
    """right, wrong or unscored."""
    score = record["scores"][place]
    return "unscored" if score is None else "right" if score >= _RIGHT else "wrong"


def _fits(record: Record, wanted: Wanted) -> bool:
    words = wanted.contains
    return (
        wanted.benchmark in (None, record["benchmark"])
        and (not wanted.level or record["level"] in wanted.level)
        and wanted.subject in (None, record["subject"])
        and wanted.id in (None, record["id"])
        and (words is None or any(words in t for t in [record["prompt"], *record["responses"]]))
    )


def _is(record: Record, place: int, kind: str) -> bool:
    if kind == "truncated":
        return record["finish"][place] in CUT
    if kind == "disagree":
        label = (record.get("labels") or [None] * (place + 1))[place]
        right = verdict(record, place) == "right"
        return label is not None and record["scores"][place] is not None and right is not label
    return verdict(record, place) == kind
