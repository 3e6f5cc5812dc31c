"""Raw rows from wherever they are: files, the hub, or Python. Files are read piece by piece; errors
name the row and the field."""

from __future__ import annotations

import codecs
import csv
import functools
import glob
import gzip
import io
import json
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import resources
from pathlib import Path
from typing import IO, Any, cast

import yaml

from dare.data.row import Row, rename
from dare.errors import InvalidInput, first_line, require, suggest

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
_HUB_NAME = re.compile(r"\w([\w.-]{0,94}\w)?", re.ASCII)
_BATCH = 1024
_CHUNK = 1 << 20
_BUFFER = 1 << 16
_SPACE = re.compile(r"[ \t\r\n]*")


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
    if isinstance(source, str | Path) and is_file(source):
        asked = {"split": None if split == "train" else split, **options}
        for name, value in asked.items():
            fix = "goes with a hub id; of a file all rows are read, so name the file of that part"
            require(value is None, {"name": "config"}.get(name, name), value, fix)
    empty = True
    for row in _raw(source, split, options):
        empty = False
        yield rename(row, columns) if columns else row
    if empty:
        name = str(source) if isinstance(source, str | Path) else type(source).__name__
        raise InvalidInput("data", name, "has no rows")


def is_file(source: object) -> bool:
    """Whether this names a file or a pattern of files, there or not, rather than a hub id."""
    text = str(source)
    if "://" in text:
        return True
    named = kind_of(Path(text)) is not None or any(sign in text for sign in "*?[")
    named |= text.startswith(("/", "./", "../", "~")) or os.path.exists(text)
    return named or os.path.isfile(os.path.dirname(text))  # below a file: meant as a path


def is_hub_id(name: str) -> bool:
    """Whether the hub could have something of this name, by its own rules."""
    parts = name.split("/")
    named = all(_HUB_NAME.fullmatch(part) for part in parts)
    return named and len(parts) < 3 and not any(twice in name for twice in ("--", ".."))


def files_of(source: str | Path) -> list[Path]:
    """The local files a path or a pattern names; none is an error."""
    path = Path(os.path.expanduser(source))  # pathlib's raises where there is no such user
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        fix = f"is a folder; name a file, or a pattern such as '{path}/*.parquet'"
        raise InvalidInput("data", str(source), fix)
    found = [Path(name) for name in sorted(glob.glob(str(path))) if os.path.isfile(name)]
    if not found:
        raise InvalidInput("data", str(source), "there is no such file")
    return found


@functools.cache
def shipped_benchmarks() -> dict[str, dict[str, Any]]:
    """benchmarks.yaml: every benchmark that is known here, to evaluate on or to keep out."""
    text = resources.files("dare.data").joinpath("benchmarks.yaml").read_text("utf-8")
    values: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return values


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


def kind_of(path: Path) -> str | None:
    """What a file of this name holds; None where that cannot be told."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return _KINDS.get(suffix.lower())


def _file(path: Path | str) -> Iterator[Row]:
    readers = {"json": json_rows, "parquet": _parquet, "csv": _csv}
    kind = kind_of(Path(path))
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
            _check_names(path, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=_BATCH):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(values, str(path), number)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        fix = f"is no readable Parquet file after row {number}"
        raise InvalidInput("data", str(path), f"{fix}: {first_line(error)}") from None


def _csv(path: Path | str) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 1 << 31))
    number = 0
    with open_bytes(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        delimiter = "\t" if ".tsv" in Path(path).suffixes else ","
        reader = csv.DictReader(text, strict=True, delimiter=delimiter)
        try:
            _check_names(path, reader.fieldnames or ())
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


def _check_names(path: Path | str, names: Sequence[str]) -> None:
    """Of two columns with one name only the last would be read."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    require(not twice, f"{path} header", twice, "several columns have this name")


def _hub(name: str, split: str, options: Mapping[str, Any]) -> Iterator[Row]:
    if not is_hub_id(name):
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


@contextmanager
def open_bytes(path: Path | str) -> Iterator[IO[bytes]]:
    """The file, local or at an address (hf://, s3://), unpacked where its name ends in .gz."""
    with ExitStack() as stack:
        if "://" in str(path):
            import fsspec

            file: IO[bytes] = stack.enter_context(fsspec.open(str(path), "rb"))
        else:
            file = stack.enter_context(open(path, "rb"))
        if str(path).endswith(".gz"):
            packed = stack.enter_context(gzip.GzipFile(fileobj=file))
            file = stack.enter_context(io.BufferedReader(cast(io.RawIOBase, packed), _BUFFER))
        yield file


def json_rows(path: Path | str) -> Iterator[Row]:
    """The rows of a file that is one JSON array, or JSON lines: what it begins with decides."""
    with open_bytes(path) as file:
        try:
            start = file.read(_CHUNK).removeprefix(codecs.BOM_UTF8).lstrip()
        except (EOFError, OSError, zlib.error):
            start = b""  # the line that it breaks at is found when lines are read
    yield from _array(path) if start[:1] == b"[" and not _list_a_line(start) else _lines(path)


def _list_a_line(start: bytes) -> bool:
    """Whether a file that begins with a bracket has a list in each of several lines."""
    first, _, rest = start.partition(b"\n")
    if not rest.lstrip().startswith(b"["):
        return False
    try:
        return isinstance(json.loads(first), list)
    except (ValueError, RecursionError):
        return False


def _lines(path: Path | str) -> Iterator[Row]:
    with open_bytes(path) as file:
        number = 0
        while True:
            try:
                line = file.readline()
            except (EOFError, OSError, zlib.error) as error:
                raise damaged(path, number, "line", error) from None
            if not line:
                return
            number += 1
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.isspace():
                continue
            where = f"{path} line {number}"
            try:
                text = line.decode()
                value = _DECODER.decode(text)
            except UnicodeDecodeError as error:
                raise not_text(where, error) from None
            except (ValueError, RecursionError) as error:
                cut = not line.endswith(b"\n")
                raise explained(where, text, error, cut) from None
            yield as_row(value, str(path), number, "line")


def _array(path: Path | str) -> Iterator[Row]:
    """Rows of an array of any length; no more than a row and a piece of the file is held."""
    number, text, place, ended = 0, "", 0, False
    read = codecs.getincrementaldecoder("utf-8-sig")()
    with open_bytes(path) as file:

        def more() -> None:
            """Drop what has been read and take another piece."""
            nonlocal text, place, ended
            try:
                # A row longer than the piece is tried again with twice as much of it.
                piece = file.read(max(_CHUNK, len(text) - place))
                text, place = text[place:] + read.decode(piece, not piece), 0
            except UnicodeDecodeError as error:
                raise not_text(f"{path} row {number + 1}", error) from None
            except (EOFError, OSError, zlib.error) as error:
                raise damaged(path, number, "row", error) from None
            ended = not piece

        def next_sign() -> str:
            """The next character that is no space; nothing at the end of the file."""
            nonlocal place
            while True:
                place = _SPACE.match(text, place).end()  # type: ignore[union-attr]
                if place < len(text) or ended:
                    return text[place : place + 1]
                more()

        next_sign()
        place += 1  # the opening bracket
        while (sign := next_sign()) != "]":
            where = f"{path} row {number + 1}"
            if number:
                if sign != ",":
                    raise InvalidInput(where, sign, "the array is cut off or lacks a comma")
                place += 1
                next_sign()
            while True:
                try:
                    value, place = _DECODER.raw_decode(text, place)
                    break
                except (ValueError, RecursionError) as error:
                    if ended or not isinstance(error, json.JSONDecodeError):
                        raise explained(where, text[place:], error, ended) from None
                    more()
            number += 1
            yield as_row(value, str(path), number, "row")
        place += 1  # the closing bracket
        if next_sign():
            fix = "the file goes on after the end of its array"
            raise InvalidInput(f"{path} after row {number}", text[place : place + 80], fix)


def as_row(value: Any, file: str, number: int, unit: str) -> Row:
    """The value as a row: an object, or a conversation, whose turns are columns 0, 1, ..."""
    if isinstance(value, dict):
        return Row(value, file, number, unit)
    if isinstance(value, list) and value and all(isinstance(turn, dict) for turn in value):
        return Row({str(turn): item for turn, item in enumerate(value)}, file, number, unit)
    fix = "a row must be an object with named fields"
    raise InvalidInput(f"{file} {unit} {number}", value, fix)


def _refuse(word: str) -> None:
    """A number that JSON does not have."""
    raise ValueError(word)


class _Twice(ValueError):
    """A name that an object has twice: JSON would take the later one without a word."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return found


_DECODER = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_once)


def not_text(where: str, error: UnicodeDecodeError) -> InvalidInput:
    """Bytes that are no UTF-8."""
    fix = "is not UTF-8; convert the file (iconv -f latin1 -t utf-8) or mend the row"
    return InvalidInput(where, error.object[error.start : error.start + 8], fix)


def damaged(path: Path | str, number: int, unit: str, error: Exception) -> InvalidInput:
    """A file that ends or breaks in the middle."""
    reason = "ends too early" if isinstance(error, EOFError) else str(error)
    return InvalidInput(str(path), reason, f"the file is damaged after {unit} {number}")


def explained(where: str, text: str, error: Exception, cut: bool) -> InvalidInput:
    """What is wrong with a text that Python could not read as JSON."""
    if isinstance(error, RecursionError):
        return InvalidInput(where, text[:80], "is nested too deeply")
    if isinstance(error, _Twice):
        return InvalidInput(where, str(error), "is there twice in one object; keep one")
    if not isinstance(error, json.JSONDecodeError):
        odd = _odd_number(text)
        if odd is not None:
            field, word, fix = odd
            return InvalidInput(f"{where}: {field}", word, fix)
    if cut:
        return InvalidInput(where, text[-80:], "is not JSON; the file seems to be cut off here")
    return InvalidInput(where, text[:80], f"is not JSON: {error}")


class _Odd(str):
    """A number that cannot be taken, as it was written."""

    __slots__ = ()


def _odd_number(text: str) -> tuple[str, str, str] | None:
    """Field, number and remedy of the first number that JSON or Python has no room for."""

    def integer(digits: str) -> Any:
        try:
            return int(digits)
        except ValueError:
            return _Odd(digits)

    try:
        value, _ = json.JSONDecoder(parse_int=integer, parse_constant=_Odd).raw_decode(text)
    except (ValueError, RecursionError):
        return None
    found = _find(value, "")
    if found is None:
        return None
    path, word = found
    digits = sum(map(str.isdigit, word))
    if not digits:
        return path, word, "JSON has no such number; use null or leave the field out"
    return path, word, f"an integer of {digits:,} digits must be written as a string, in quotes"


def _find(value: Any, path: str) -> tuple[str, _Odd] | None:
    if isinstance(value, _Odd):
        return path, value
    if not isinstance(value, dict | list):
        return None
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        here = f"{path}[{name}]" if isinstance(value, list) else f"{path}.{name}".lstrip(".")
        found = _find(item, here)
        if found is not None:
            return found
    return None
