"""Raw rows from wherever they are: files, the hub, or Python."""

from __future__ import annotations

import csv
import functools
import glob
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from dare.data.json_rows import json_rows, open_bytes
from dare.data.row import Row, rename
from dare.errors import InvalidInput, require, suggest

Source = str | Path | Mapping[str, Any] | Iterable[Mapping[str, Any]]

_KINDS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
}
_KEYS = ("path", "split", "config", "revision", "columns")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_BATCH = 1024


def read_rows(
    source: Source, *, split: str = "train", columns: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Stream the rows of a data set as they are; nothing is held but a piece of it.

    `source` is a file (JSON lines, a JSON array, CSV, each also .gz, or Parquet), a pattern of
    files (`data/*.parquet`), a hub id, a mapping {path, split, config, revision, columns}, or any
    Python iterable of mappings. `split` matters for hub ids alone. `columns` renames: {field:
    column}, where a column may be a path into nested ones. Rows are `Row`s: `row.where` says
    where each came from. A source without rows is an error.
    """
    options: dict[str, Any] = {}
    if isinstance(source, Mapping):
        for name in source:
            require(name in _KEYS, f"source.{name}", source[name], suggest(str(name), _KEYS))
        split = source.get("split") or split
        columns = columns or source.get("columns")
        options = {"name": source.get("config"), "revision": source.get("revision")}
        source = source.get("path") or ""
    name = _name(source)
    empty = True
    for row in _raw(source, split, options):
        empty = False
        yield rename(row, columns) if columns else row
    if empty:
        raise InvalidInput("data", name, "has no rows")


def is_file(source: object) -> bool:
    """Whether this names a file or a pattern of files, there or not, rather than a hub id."""
    text = str(source)
    if "://" in text:
        return True
    named = _kind(Path(text)) is not None or any(sign in text for sign in "*?[")
    return named or text.startswith(("/", "./", "../", "~")) or Path(text).exists()


def files_of(source: str | Path) -> list[Path]:
    """The local files a path or a pattern names; none is an error."""
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        fix = f"is a folder; name a file, or a pattern such as '{path}/*.parquet'"
        raise InvalidInput("data", str(source), fix)
    found = [Path(name) for name in sorted(glob.glob(str(path))) if Path(name).is_file()]
    if not found:
        raise InvalidInput("data", str(source), "there is no such file")
    return found


@functools.cache
def shipped_benchmarks() -> dict[str, dict[str, Any]]:
    """benchmarks.yaml: every benchmark that is known here, to evaluate on or to keep out."""
    text = resources.files("dare.data").joinpath("benchmarks.yaml").read_text("utf-8")
    values: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return values


def _name(source: object) -> str:
    return str(source) if isinstance(source, str | Path) else type(source).__name__


def _raw(source: Any, split: str, options: Mapping[str, Any]) -> Iterator[Row]:
    if isinstance(source, str | Path):
        if not is_file(source):
            yield from _hub(str(source), split, options)
            return
        remote = "://" in str(source)
        for path in _addresses(str(source)) if remote else files_of(source):
            yield from _file(path)
        return
    if not isinstance(source, Iterable):
        fix = "name a file or a hub id, or give an iterable of mappings"
        raise InvalidInput("data", source, fix)
    for number, row in enumerate(source, start=1):
        if not isinstance(row, Mapping):
            fix = "a row must be a mapping with named fields"
            raise InvalidInput(f"row {number}", row, fix)
        yield Row(row, "", number)


def _addresses(pattern: str) -> list[str]:
    """The files behind an address with stars."""
    import fsspec  # type: ignore[import-untyped]

    try:
        system, path = fsspec.core.url_to_fs(pattern)
        found = sorted(map(str, system.glob(path))) if "*" in path else [path]
        return [str(system.unstrip_protocol(name)) for name in found]
    except Exception as error:  # each kind of address fails in its own way
        raise InvalidInput("data", pattern, f"cannot be reached ({first_line(error)})") from error


def _kind(path: Path) -> str | None:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return _KINDS.get(suffix.lower())


def _file(path: Path | str) -> Iterator[Row]:
    readers = {"json": json_rows, "parquet": _parquet, "csv": _csv}
    kind = _kind(Path(path))
    if kind is None:
        fix = f"unknown kind of file; DARE reads {', '.join(_KINDS)} (text also with .gz)"
        raise InvalidInput("data", str(path), fix)
    try:
        yield from readers[kind](path)
    except InvalidInput:
        raise
    except FileNotFoundError:
        raise InvalidInput("data", str(path), "there is no such file") from None
    except Exception as error:  # a file that cannot be opened, here or at its address
        raise InvalidInput("data", str(path), first_line(error)) from error


def _parquet(path: Path | str) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with open_bytes(path) as raw, parquet.ParquetFile(raw) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(values, str(path), number)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        fix = f"is no readable Parquet file after row {number}"
        raise InvalidInput("data", str(path), f"{fix}: {first_line(error)}") from None


def _csv(path: Path | str) -> Iterator[Row]:
    import io

    csv.field_size_limit(min(sys.maxsize, 1 << 31))
    number = 0
    with open_bytes(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        delimiter = "\t" if ".tsv" in Path(path).suffixes else ","
        reader = csv.DictReader(text, strict=True, delimiter=delimiter)
        try:
            twice = [name for name, count in Counter(reader.fieldnames or ()).items() if count > 1]
            if twice:
                raise InvalidInput(f"{path} header", twice, "several columns have this name")
            for values in reader:
                number += 1
                if None in values or None in values.values():
                    names = reader.fieldnames or ()
                    fix = f"the row has not the {len(names)} cells of the header"
                    raise InvalidInput(f"{path} row {number}", [*values.values()], fix)
                yield Row({k: v or None for k, v in values.items()}, str(path), number)
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{path} row {number + 1}", str(error), "is not UTF-8") from None
        except (csv.Error, EOFError, OSError) as error:
            fix = f"the file is damaged after row {number}"
            raise InvalidInput(str(path), str(error), fix) from None


def _hub(name: str, split: str, options: Mapping[str, Any]) -> Iterator[Row]:
    if not _HUB_ID.fullmatch(name):
        raise InvalidInput("data", name, "is neither a file nor a hub id such as owner/name")
    from datasets import load_dataset

    number = 0
    try:
        rows = load_dataset(name, split=split, streaming=True, **options)
        for number, values in enumerate(rows, start=1):
            yield Row(values, name, number)
    except Exception as error:  # whatever went wrong on the way, the user needs its first line
        fix = f"the hub gave no row after row {number} ({type(error).__name__}: "
        raise InvalidInput("data", name, f"{fix}{first_line(error)})") from error


def first_line(error: BaseException) -> str:
    """The beginning of what an error says, for a message of one line."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0][:200]
