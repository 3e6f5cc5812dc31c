"""Plain data as text and back: all that ever crosses between a program and the judge.

This file is also sent into the sandbox, so it uses nothing but the standard library. JSON lists
are lists; every other JSON object has one key, which names a type: {"t": [1, 2]} is (1, 2).
Only exact types are written. An int or str of a program's own making could equal everything.
"""

from __future__ import annotations

import collections
import functools
import json
import os

TYPE_CHECKING = False  # importing typing would cost more than all the rest of a start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WORD = 1 << 63
_ATOMS = {str, float, bool, type(None)}
_DICTS: dict[type, str] = {
    dict: "d",
    collections.defaultdict: "d",
    collections.Counter: "ct",
    collections.OrderedDict: "od",
}
_MANY: dict[type, str] = {
    tuple: "t",
    set: "s",
    frozenset: "fs",
    collections.deque: "dq",
    type({}.keys()): "dk",
    type({}.values()): "dv",
    type({}.items()): "di",
    map: "it",
    zip: "it",
    filter: "it",
    enumerate: "it",
    reversed: "it",
    type(iter([])): "it",
    type(reversed([])): "it",
    type(_ for _ in ""): "it",
}
_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset)
}
MOST_ITEMS = 1 << 20  # of an iterator, which may never end


class Unsupported(TypeError):
    """A value that is not plain data."""


def refuse(value: object) -> Any:
    """For a value that has no plain form."""
    raise Unsupported(f"a result of type {type(value).__name__} is not plain data")


def dump(value: object, other: Callable[[Any], Any] = refuse) -> str:
    """A value as text; `other` says what to write for what is not plain data."""
    try:
        return json.dumps(_pack(value, other), separators=(",", ":"))
    except RecursionError:
        raise Unsupported("a result that is nested too deeply") from None


def _pack(value: Any, other: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is int:
        # Long integers go as hex: decimal digits take quadratic time, and Python limits them.
        return value if -_WORD < value < _WORD else {"i": hex(value)}
    if kind is list:
        return _pack_items(value, other)
    if kind in _DICTS:
        body = [_pack_items(list(value), other), _pack_items(list(value.values()), other)]
        return {_DICTS[kind]: body}
    if kind in _MANY:
        items = []
        for item in value:
            items.append(item)
            if len(items) > MOST_ITEMS and _MANY[kind] == "it":
                raise Unsupported("an iterator that does not end")
        return {_MANY[kind]: _pack_items(items, other)}
    if kind is range:
        _short(value)
        return {"r": [value.start, value.stop, value.step]}
    if kind is bytes or kind is bytearray:
        return {"b": value.hex()}
    if kind is complex:
        return {"c": [value.real, value.imag]}
    if kind.__base__ is tuple and type(getattr(kind, "_fields", None)) is tuple:
        # A named tuple: its names, and the items as the tuple that it is has them.
        return {"nt": [list(kind._fields), _pack_items(list(tuple.__iter__(value)), other)]}
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _pack(value.item(), other)  # a NumPy number
    if kind is type and value in _TYPES.values():
        return {"ty": value.__name__}
    return other(value)


def _pack_items(items: list[Any], other: Callable[[Any], Any]) -> list[Any]:
    kinds = set(map(type, items))
    if kinds <= _ATOMS or (kinds == {int} and min(items) > -_WORD and max(items) < _WORD):
        return items
    return [_pack(item, other) for item in items]


def _short(value: range) -> range:
    """Refuse a range that costs nothing to return and everything to go through."""
    if value[MOST_ITEMS:]:
        raise Unsupported("a range that is too long")
    return value


@functools.lru_cache(64)
def _named(names: tuple[str, ...]) -> Callable[..., Any]:
    """The class of such named tuples."""
    return collections.namedtuple("Named", names)


_BUILD: dict[str, Callable[[Any], Any]] = {
    "i": lambda body: int(body, 16),
    "d": lambda body: dict(zip(*body, strict=True)),
    "ct": lambda body: collections.Counter(dict(zip(*body, strict=True))),
    "od": lambda body: collections.OrderedDict(zip(*body, strict=True)),
    "nt": lambda body: _named(tuple(body[0]))(*body[1]),
    "t": tuple,
    "s": set,
    "fs": frozenset,
    "dq": collections.deque,
    "dk": lambda body: dict.fromkeys(body).keys(),
    "dv": lambda body: dict(enumerate(body)).values(),
    "di": lambda body: dict(body).items(),
    "it": iter,
    "r": lambda body: _short(range(*body)),
    "b": bytes.fromhex,
    "c": lambda body: complex(*body),
    "ty": _TYPES.__getitem__,
}


class Bag(list):  # type: ignore[type-arg]
    """The items of a set that nobody has hashed."""


class Pairs(list):  # type: ignore[type-arg]
    """The keys and values of a dict that nobody has hashed."""


# A program can choose keys that all hash alike, and building its sets would then take for ever.
_INERT = _BUILD | {
    "s": Bag,
    "fs": Bag,
    **dict.fromkeys(("d", "ct", "od"), lambda body: Pairs(zip(*body, strict=True))),
    "nt": lambda body: tuple(body[1]),
    "dk": list,
    "dv": list,
    "di": list,
}


def load(text: str | bytes, link: Callable[[Any], Any] = refuse, *, inert: bool = False) -> Any:
    """The value of a text; `link` turns what `other` wrote as {"o": ...} into an object.

    With `inert`, sets and dicts come as `Bag` and `Pairs`. Raises ValueError for whatever is not
    such a text: it may come from the program itself.
    """

    def build(tagged: list[tuple[str, Any]]) -> Any:
        ((tag, body),) = tagged
        return link(body) if tag == "o" else makers[tag](body)

    makers = _INERT if inert else _BUILD
    try:
        return json.loads(text, object_pairs_hook=build)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise ValueError(f"not a message: {error!r}"[:200]) from None


def frame(payload: bytes) -> bytes:
    """A message with its length in front."""
    return len(payload).to_bytes(4, "big") + payload


class Channel:
    """The sandbox's end of the line to the judge, who is told at once that it is there."""

    def __init__(self, fd: int = 3) -> None:
        self._fd = fd
        self.send(b"")

    def send(self, payload: bytes) -> None:
        """All of one message."""
        rest = memoryview(frame(payload))
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def receive(self) -> bytes:
        """The next message; ends the process where the judge has hung up."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self._fd, min(size, 1 << 20))
            if not part:
                os._exit(0)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
