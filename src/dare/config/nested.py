"""Nested and dotted settings, checked against the fields of a dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dare.errors import InvalidInput, require, suggest


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """{'easy.below': 0.2} becomes {'easy': {'below': 0.2}}."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        head, _, rest = str(key).partition(".")
        inner = nest({rest: value}) if rest else value
        if isinstance(inner, Mapping):
            before = nested.get(head, {})
            if not isinstance(before, Mapping):
                raise InvalidInput(str(key), value, f"{head!r} is given as a plain value too")
            inner = merge(before, nest(inner))
        nested[head] = inner
    return nested


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` on top, mapping by mapping."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def build(kind: type[Any], values: Any, path: str) -> Any:
    """The dataclass `kind` from nested values; what does not fit is named by its path."""
    if not isinstance(values, Mapping):
        raise InvalidInput(path or "config", values, "must be a mapping of settings")
    hints = get_type_hints(kind)
    known = [item.name for item in dataclasses.fields(kind)]
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in known:
            raise InvalidInput(where, value, f"is no setting; {suggest(str(key), known)}")
        if dataclasses.is_dataclass(hints[key]):
            arguments[key] = build(hints[key], value, where)
        else:
            arguments[key] = _typed(hints[key], value, where)
    return kind(**arguments)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """The value as its field's type: a YAML '1' fits a float, a 1.0 an int, 'x' neither."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        fix = suggest(str(value), [str(choice) for choice in choices])
        require(value in choices, where, value, fix)
        return value
    if hint is bool:
        require(isinstance(value, bool), where, value, "must be true or false")
        return value
    if hint in (str, str | None):
        fix = "must be text" if hint is str else "must be text or null"
        require(isinstance(value, str) or (value is None and hint is not str), where, value, fix)
        return value
    if hint in (int, float):
        number = value
        if isinstance(value, str):  # YAML 1.1 reads 1e-4 as text
            try:
                number = float(value)
            except ValueError:
                raise InvalidInput(where, value, "must be a number") from None
        whole = hint is float or (isinstance(number, (int, float)) and float(number).is_integer())
        plain = isinstance(number, (int, float)) and not isinstance(number, bool)
        kind = "a whole number" if hint is int else "a number"
        require(plain and whole and number == number, where, value, f"must be {kind}")
        return hint(number)
    options = get_args(hint)  # a number or one of a few words
    words = [option for option in options if get_origin(option) is Literal]
    if words and isinstance(value, str) and value in get_args(words[0]):
        return value
    try:
        return _typed(next(option for option in options if option not in words), value, where)
    except InvalidInput:
        named = ", ".join(repr(word) for word in get_args(words[0]))
        raise InvalidInput(where, value, f"must be a number or one of {named}") from None
