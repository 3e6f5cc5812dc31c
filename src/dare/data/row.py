"""A row as it came from its file, which knows where that was, and the words of its prompt."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any

from dare.errors import InvalidInput

_MISSING = object()
_LISTED, _WIDE = 30, 400  # names and characters that a message has room for


class Row(dict[str, Any]):
    """A raw row; `where` says which line of which file it is, for messages."""

    __slots__ = ("file", "number", "unit")

    def __init__(
        self, values: Mapping[str, Any], file: str = "", number: int = 0, unit: str = "row"
    ) -> None:
        super().__init__(values)
        self.file, self.number, self.unit = file, number, unit

    @property
    def where(self) -> str:
        """'data.jsonl line 3'."""
        return f"{self.file} {self.unit} {self.number}".strip()


def where_is(raw: Mapping[str, Any]) -> str:
    """Where a row came from, as far as it is known."""
    return raw.where if isinstance(raw, Row) else "row"


def lookup(raw: Mapping[str, Any], column: str, default: Any = None) -> Any:
    """A column by name, or by a path into nested ones: `reward_model.ground_truth`."""
    if column in raw:
        return raw[column]
    if "." not in column:
        return default
    value: Any = raw
    for name in column.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[name]
    return value


IDS = ("id", "task_id", "unique_id", "question_id", "ID")


def own_id(raw: Mapping[str, Any]) -> Any:
    """What the data set itself calls the row; None where it does not."""
    return next((raw[name] for name in IDS if raw.get(name) is not None), None)


def has(raw: Mapping[str, Any], column: str) -> bool:
    """Whether the row has that column or path, be it null."""
    return lookup(raw, column, _MISSING) is not _MISSING


def without(raw: Mapping[str, Any], names: Container[str]) -> Row:
    """The row less some of its columns."""
    rest = {name: value for name, value in raw.items() if name not in names}
    return Row(rest, raw.file, raw.number, raw.unit) if isinstance(raw, Row) else Row(rest)


def rename(raw: Row, columns: Mapping[str, str]) -> Row:
    """The row with each named column under the name of its field."""
    found: dict[str, Any] = {}
    for field, column in columns.items():
        found[field] = lookup(raw, column, _MISSING)
        if found[field] is _MISSING:
            raise no_column(raw, column, field)
    rest = {name: value for name, value in raw.items() if name not in columns.values()}
    return Row({**rest, **found}, raw.file, raw.number, raw.unit)


def column_names(raw: Mapping[str, Any]) -> str:
    """The columns of a row, for messages; odd names are quoted so that a message stays a line."""
    names = [str(name) for name in raw]
    shown = ", ".join(name if name.isprintable() else repr(name) for name in names[:_LISTED])
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{shown[:_WIDE]}{more}" or "no columns at all"


def no_column(raw: Mapping[str, Any], column: str, field: str) -> InvalidInput:
    """The error for a column that is not there."""
    fix = f"no such column; it has {column_names(raw)}"
    return InvalidInput(f"{where_is(raw)}: {field}", column, fix)


def text_of(prompt: str | list[dict[str, str]]) -> str:
    """What identifies a prompt: its text, or its messages in a canonical form."""
    if isinstance(prompt, str):
        return prompt
    return json.dumps([[turn["role"], turn["content"]] for turn in prompt])


def problem_text(prompt: str | list[dict[str, str]]) -> str:
    """The words of a prompt as a person reads it: all of its user turns."""
    if isinstance(prompt, str):
        return prompt
    own = [turn["content"] for turn in prompt if turn["role"] == "user"]
    return "\n".join(own or [turn["content"] for turn in prompt])


def blank(text: str) -> bool:
    """Whether a text shows nothing: spaces, and signs that have no shape."""
    return not any(sign.isprintable() and not sign.isspace() for sign in text)


def encodable(text: str, where: str) -> str:
    """The text, unless UTF-8 cannot hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = text[error.start : error.end]
        raise InvalidInput(where, bad, "has half of a character (a lone surrogate)") from None
    return text
