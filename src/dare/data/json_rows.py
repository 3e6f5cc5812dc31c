"""Rows of JSON lines and of JSON arrays, read piece by piece; errors name the row and the field."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from dare.data.row import Row
from dare.errors import InvalidInput

_CHUNK = 1 << 20
_BUFFER = 1 << 16
_SPACE = re.compile(r"[ \t\r\n]*")


@contextmanager
def open_bytes(path: Path | str) -> Iterator[IO[bytes]]:
    """The file, local or at an address (hf://, s3://), unpacked where its name ends in .gz."""
    with ExitStack() as stack:
        if "://" in str(path):
            import fsspec  # type: ignore[import-untyped]

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
            text = _text(line, where)
            try:
                value = _parse(text)
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


class _Refused(ValueError):
    """A number that JSON does not have."""


def _refuse(word: str) -> None:
    raise _Refused(word)


_DECODER = json.JSONDecoder(parse_constant=_refuse)
_parse = _DECODER.decode


def _text(line: bytes, where: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise not_text(where, error) from None


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
