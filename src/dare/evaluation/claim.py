"""The folder of an evaluation: one writer at a time, and one set of settings."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput
from dare.evaluation.records import FILE, RecordFile

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
            write_whole(folder / SETTINGS, json.dumps(wanted, indent=1) + "\n")
        except OSError as error:
            fix = f"cannot be written to ({error.strerror})"
            raise InvalidInput("--out", str(folder), fix) from None
        yield
    finally:
        os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """A file that is complete or absent."""
    data = text.encode("utf-8", "backslashreplace")  # before anything is opened
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


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
    if not records.is_file() or not records.stat().st_size:
        return {}  # nothing was made with whatever settings there are
    if not path.is_file():
        fix = f"has records but no {SETTINGS}; use another --out or --overwrite"
        raise InvalidInput("--out", str(folder), fix)
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
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
