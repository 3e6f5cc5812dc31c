"""The folder of an evaluation: its records, who may write them, and which to look at.

records.jsonl has one line a problem, with everything one may want to look at:

    {"benchmark", "id", "level", "subject", "prompt", "gold",
     "responses": [...], "scores": [1.0, 0.0, null], "tokens": [...], "finish": ["stop", "length"]}

Saved responses may add "names" and "labels" (the file's own verdicts), one a response.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput, suggest
from dare.runs.files import write_json

FILE = "records.jsonl"
CUT = ("length", "prompt")
"""Reasons to end that are no end: out of tokens, or no room after the prompt."""
RIGHT = 1.0 - 1e-9
"""The least score of a right response."""
Record = dict[str, Any]
_LISTS = ("responses", "scores", "tokens", "finish")
_MORE = {"names", "labels"}
_NAMES = {"benchmark", "id", "level", "subject", "prompt", "gold", *_LISTS}


class RecordFile:
    """Grows by whole lines; `mend` drops a last one that a crash cut off."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def append(self, records: Iterable[Record]) -> None:
        """Add lines and see them on disk."""
        text = "".join(json.dumps(record) + "\n" for record in records)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def mend(self) -> None:
        """Drop what stands after the last whole line."""
        if not self.path.is_file():
            return
        held = self.path.read_bytes()
        whole = held.rfind(b"\n") + 1
        if whole < len(held):
            os.truncate(self.path, whole)

    def read(self) -> list[Record]:
        """All records; none where there is no file."""
        if not os.path.isfile(self.path):
            return []
        records = []
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    record = None
                if not _is_record(record):
                    start = line[:80].decode("utf-8", "backslashreplace")
                    fix = "is no record; remove the line or the folder"
                    raise InvalidInput(f"{self.path} line {number}", start, fix)
                records.append(record)
        return records


def _is_record(value: Any) -> bool:
    """Whether a line has what everybody relies on: the names, and lists of one length."""
    if not isinstance(value, dict) or not value.keys() >= _NAMES:
        return False
    size = len(value["scores"]) if isinstance(value["scores"], list) else -1
    lists = [value[name] for name in (*_LISTS, *(_MORE & value.keys()))]
    named = all(isinstance(value[name], str) for name in ("benchmark", "id", "prompt"))
    plain = (str, int, float, type(None))
    return (
        named
        and all(isinstance(value[name], plain) for name in ("level", "subject"))
        and all(isinstance(one, list) and len(one) == size for one in lists)
        and all(isinstance(text, str) for text in value["responses"])
        and all(one is None or _is_number(one) for one in value["scores"] + value["tokens"])
    )


def _is_number(value: Any) -> bool:
    """One to count with: no NaN, and none beyond all measure."""
    return isinstance(value, (int, float)) and abs(value) <= 2**53


def read_records(folder: str | Path) -> list[Record]:
    """The records of an evaluation folder."""
    path = Path(folder)
    found = RecordFile(path).read()
    if not found:
        raise InvalidInput("run", str(folder), f"has no {FILE}; is it a folder of `dare eval`?")
    return found


def by_benchmark(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records of each benchmark, in order of appearance."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["benchmark"], []).append(record)
    return groups


SETTINGS, FIGURES, TABLES = "settings.json", "eval.json", "eval.md"
# Settings that no option of their own gives: what the user has changed instead.
_GIVEN = {"model": "MODEL", "weights": "weights of MODEL", "digest": "content of --responses"}


@contextmanager
def claimed(
    folder: Path, settings: Mapping[str, Any], data: Mapping[str, str], *, overwrite: bool = False
) -> Iterator[None]:
    """Hold the folder, begun with these settings and data or not begun at all.

    `data` has a fingerprint a benchmark. A folder that another process writes to, or that was
    begun with something else, is refused and stays as it was; `overwrite` empties it instead.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        fix = f"cannot be a folder to write to ({error.strerror})"
        raise InvalidInput("--out", str(folder), fix) from None
    try:
        _lock(handle, folder)
        if overwrite:
            for name in (FIGURES, TABLES, FILE, SETTINGS):
                (folder / name).unlink(missing_ok=True)
        wanted = json.loads(json.dumps({**settings, "data": dict(data)}))
        wanted["data"] = {**_checked(folder, wanted), **wanted["data"]}
        RecordFile(folder).mend()
        try:
            write_json(folder / SETTINGS, wanted)
        except OSError as error:
            fix = f"cannot be written to ({error.strerror})"
            raise InvalidInput("--out", str(folder), fix) from None
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    """Until the handle is closed; a killed process lets go by itself."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fix = "another `dare eval` is writing there; wait for it or use another --out"
        raise InvalidInput("--out", str(folder), fix) from None
    except OSError:
        pass  # a file system without locks


def _checked(folder: Path, wanted: Mapping[str, Any]) -> dict[str, str]:
    """The fingerprints that the folder was begun with, after comparing all settings."""
    path, records = folder / SETTINGS, folder / FILE
    if not os.path.isfile(records) or not records.stat().st_size:
        return {}  # nothing was made with whatever settings there are
    if not os.path.isfile(path):
        fix = f"has records but no {SETTINGS}; use another --out or --overwrite"
        raise InvalidInput("--out", str(folder), fix)
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        before = None
    data = before.get("data") if isinstance(before, dict) else None
    if not isinstance(before, dict) or not isinstance(data, dict):
        raise InvalidInput("--out", str(path), "is damaged; use --overwrite")
    for name in sorted({*before, *wanted} - {"data"}):
        if before.get(name) != wanted.get(name):
            option = _GIVEN.get(name, f"--{name.replace('_', '-')}")
            fix = (
                f"{folder} was begun with {before.get(name)!r}; give that, another --out, or "
                "--overwrite"
            )
            raise InvalidInput(option, wanted.get(name), fix)
    for name, digest in wanted["data"].items():
        if data.get(name, digest) != digest:
            fix = (
                f"{folder} was begun with other problems, or another reward or template; use "
                "another --out or --overwrite"
            )
            raise InvalidInput(f"benchmark {name}", digest, fix)
    return data


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
        ("id", (wanted.id,)),
    ):
        known = {str(record[field]) for record in records if record[field] is not None}
        for name in given:
            if name is not None and name not in known:
                fix = suggest(name, known) if known else f"no record has a {field}"
                raise InvalidInput(f"--{field}", name, fix)


def verdict(record: Record, place: int) -> str:
    """right, wrong or unscored."""
    score = record["scores"][place]
    return "unscored" if score is None else "right" if score >= RIGHT else "wrong"


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
