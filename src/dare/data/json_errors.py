"""What is wrong with a text that Python could not read as JSON, in words that help to mend it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput


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
