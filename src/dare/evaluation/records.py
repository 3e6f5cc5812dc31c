"""records.jsonl: one line a problem, with everything one may want to look at.

    {"benchmark", "id", "level", "subject", "prompt", "gold",
     "responses": [...], "scores": [1.0, 0.0, null], "tokens": [...], "finish": ["stop", "length"]}

Saved responses may add "names" and "labels" (the file's own verdicts), one a response.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput
from dare.evaluation.figures import Responses

FILE = "records.jsonl"
CUT = ("length", "prompt")
"""Reasons to end that are no end: out of tokens, or no room after the prompt."""
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
        with open(self.path, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            place = size
            while place > 0:
                start = max(0, place - (1 << 16))
                file.seek(start)
                found = file.read(place - start).rfind(b"\n")
                if found >= 0:
                    place = start + found + 1
                    break
                place = start
            if place < size:
                file.truncate(place)

    def read(self) -> list[Record]:
        """All records; none where there is no file."""
        if not self.path.is_file():
            return []
        records = []
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    record = json.loads(line)
                except ValueError:
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
    return (
        all(isinstance(one, list) and len(one) == size for one in lists)
        and all(isinstance(text, str) for text in value["responses"])
        and all(one is None or isinstance(one, (int, float)) for one in value["scores"])
        and all(one is None or isinstance(one, (int, float)) for one in value["tokens"])
    )


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


def columns_of(records: Sequence[Mapping[str, Any]]) -> Responses:
    """The responses of these records as columns."""
    problem = [row for row, record in enumerate(records) for _ in record["scores"]]
    finish = [reason for record in records for reason in record["finish"]]
    return Responses.from_lists(
        problem,
        [score for record in records for score in record["scores"]],
        [size for record in records for size in record["tokens"]],
        [None if reason is None else reason in CUT for reason in finish],
    )
