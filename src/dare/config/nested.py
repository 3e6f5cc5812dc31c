"""Settings as their annotations have them: nested or dotted, of a dataclass or a function."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from inspect import Parameter, signature
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dare.errors import InvalidInput, require, suggest

_LARGEST = 2.0**53  # beyond it whole numbers and floats part company


def nest(values: Mapping[str, Any], *, once: bool = False) -> dict[str, Any]:
    """{'easy.below': 0.2} becomes {'easy': {'below': 0.2}}. Of a setting that is given in both ways
    the later counts, or `once` refuses it."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        head, _, rest = str(key).partition(".")
        inner = nest({rest: value}) if rest else value
        if isinstance(inner, Mapping):
            before = nested.get(head, {})
            if not isinstance(before, Mapping):
                raise InvalidInput(str(key), value, f"{head!r} is given as a plain value too")
            inner = nest(inner, once=once)
            known = dict(flat(before)) if once else {}
            for name, other in flat(inner):
                fix = f"is given as {known.get(name)!r} too; keep one"
                alike = name not in known or known[name] == other
                require(alike, f"{head}.{name}", other, fix)
            inner = merge(before, inner)
        nested[head] = inner
    return nested


def flat(nested: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """Names and values of nested settings, the names dotted."""
    found: list[tuple[str, Any]] = []
    for key, value in nested.items():
        name = f"{path}{key}"
        inner = isinstance(value, Mapping)
        found += flat(value, f"{name}.") if inner else [(name, value)]
    return found


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` on top, mapping by mapping."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def build(kind: type[Any], values: Any, path: str) -> Any:
    """The dataclass `kind` from nested values; what does not fit is named by its path."""
    return kind(**arguments(kind, values, path))


def arguments(
    kind: Callable[..., Any], values: Any, path: str, *, some: bool = False, mark: str = "."
) -> dict[str, Any]:
    """Values for the parameters of a dataclass or a function, each as its annotation has it; all
    that it needs unless `some` will do. `mark` stands between the path and a name."""
    if not isinstance(values, Mapping):
        raise InvalidInput(path or "config", values, "must be a mapping of settings")
    hints, taken = hints_of(kind), _parameters(kind)
    made: dict[str, Any] = {}
    for key, value in values.items():
        where = f"{path}{mark}{key}" if path else str(key)
        if key not in taken:
            raise InvalidInput(where, value, f"is no setting; {suggest(str(key), taken)}")
        made[key] = typed(hints.get(key, Any), value, where)
    for key, one in () if some else taken.items():
        if key not in made and one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD:
            raise InvalidInput(path, dict(values), f"needs {key!r}")
    return made


_hints = functools.cache(get_type_hints)


@functools.cache
def _parameters(kind: Callable[..., Any]) -> Mapping[str, Parameter]:
    return signature(kind).parameters


def hints_of(kind: Any) -> dict[str, Any]:
    """The annotations of a dataclass or a function; read once, as they are text."""
    return _hints(kind)


def names_of(kind: Any, path: str = "") -> dict[str, Any]:
    """The annotation of every setting by its dotted name."""
    names: dict[str, Any] = {}
    for key, hint in hints_of(kind).items():
        where = f"{path}{key}"
        names |= names_of(hint, f"{where}.") if dataclasses.is_dataclass(hint) else {where: hint}
    return names


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the one type; beside its choices plain text says nothing."""
    if isinstance(hint, type):
        return (hint,)
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(kind for kind in kinds if kind is not str or not any(map(_is_enum, kinds)))


def typed(hint: Any, value: Any, where: str) -> Any:
    """The value as its annotation has it, whatever its way in: a YAML '1e-4' fits a float, a 1.0 an
    int, 'x' neither."""
    kinds = kinds_of(hint)
    for kind in kinds:
        with contextlib.suppress(_Unfit):
            return _as(kind, value, where)
    choices = _choices(kinds)
    words = [_WORDS.get(get_origin(kind) or kind, "") for kind in kinds]
    words = [word for word in words if word]
    if choices and not [word for word in words if word != "null"]:
        raise InvalidInput(where, value, suggest(str(value), choices))
    words += [f"one of {', '.join(map(repr, choices))}"] if choices else []
    other = [kind.__name__ for kind in kinds if isinstance(kind, type)]
    raise InvalidInput(where, value, f"must be {' or '.join(words or other)}")


def within(interval: str, value: float, where: str) -> None:
    """Refuse a number outside an interval such as '(0, 1]' or '[1, inf)'."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    fix = f"must be in {interval}"
    if math.isinf(high):
        fix = f"must be {'at least' if interval[0] == '[' else 'more than'} {low:g}"
    require(above and below, where, value, fix)


class _Unfit(Exception):
    """A value is not of this type; another of the union may fit."""


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text (in quotes where it looks like a number)",
    list: "a list",
    Iterable: "a list",
    dict: "a mapping",
    NoneType: "null",
}


def _as(kind: Any, value: Any, where: str) -> Any:
    if kind is int or kind is float:
        return _number(kind, value)
    if kind is Any:
        return value
    origin = get_origin(kind) or kind
    if origin is Literal or _is_enum(kind):
        value = "no" if value is False else value  # YAML reads a bare `no` as False
        fits = _is_enum(kind) and isinstance(value, kind)
        fits = fits or (isinstance(value, str | bool) and value in _values(kind))
    elif origin in (list, Iterable, Sequence):
        inner = (get_args(kind) or (Any,))[0]
        if isinstance(value, list | tuple | range):
            return [typed(inner, one, f"{where}[{place}]") for place, one in enumerate(value)]
        fits = False
    elif kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    elif dataclasses.is_dataclass(kind) and not isinstance(value, kind):  # type: ignore[arg-type]
        return build(kind, value, where)  # type: ignore[arg-type]
    elif origin is dict and isinstance(value, Mapping) and get_args(kind):
        inner = get_args(kind)[1]
        return {key: typed(inner, one, f"{where}.{key}") for key, one in value.items()}
    elif origin is dict:
        # A library may have made an object of the mapping since.
        fits = isinstance(value, Mapping) or dataclasses.is_dataclass(value)
    else:
        fits = not isinstance(origin, type) or isinstance(value, origin)
    if not fits:
        raise _Unfit
    return value


def _number(kind: type[int] | type[float], value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise _Unfit
    if isinstance(value, str) and (not value.isascii() or value != value.strip()):
        raise _Unfit  # Python reads the digits of all scripts, and spaces around them
    try:
        try:
            number: int | float = int(value) if isinstance(value, Integral | str) else float(value)
        except ValueError:  # YAML 1.1 reads 1e-4 as text
            number = float(value)
        finite = math.isfinite(number) and abs(number) < _LARGEST
    except (ValueError, OverflowError):
        raise _Unfit from None
    if not finite or (kind is int and number != int(number)):
        raise _Unfit
    return kind(number)


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _values(kind: Any) -> list[Any]:
    return [one.value for one in kind] if _is_enum(kind) else list(get_args(kind))


def _choices(kinds: Sequence[Any]) -> list[str]:
    several = [kind for kind in kinds if _is_enum(kind) or get_origin(kind) is Literal]
    return [str(value) for kind in several for value in _values(kind)]
