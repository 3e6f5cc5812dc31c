"""What a function returned against what it should have returned."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

from dare_verify.code.wire import Bag, Pairs

TOLERANCE = 1e-6
_VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))
_ABSENT = object()
_SEQUENCES: Any = (list, tuple, deque, range, *_VIEWS)
_ORDERED: Any = (*_SEQUENCES, Iterator)
_EXACT_FLOAT = 1 << 53


def same(found: Any, expected: Any) -> bool:
    """Whether a returned value is the expected one.

    Both are plain data, the found one as `load(..., inert=True)` gives it. Lists and tuples are the
    same, and so are other things that one goes through in order (JSON has lists only); sets are
    not lists. True is not 1. A float is right for an integer where it is exactly that integer; only
    where a float is expected may the number be off, by 1e-6 of the larger of itself and one.
    """
    if isinstance(expected, bool) or isinstance(found, bool) or expected is None or found is None:
        return found is expected
    if isinstance(expected, int):
        if isinstance(found, float):
            return abs(expected) <= _EXACT_FLOAT and found == expected
        return isinstance(found, int) and found == expected
    if isinstance(expected, float):
        return isinstance(found, (int, float)) and _close(found, expected)
    if isinstance(expected, complex):
        return isinstance(found, (int, float, complex)) and _close_complex(found, expected)
    if isinstance(expected, _SEQUENCES):
        return _same_items(found, expected)
    if isinstance(expected, dict):
        return isinstance(found, Pairs) and _same_dict(found, expected)
    if isinstance(expected, (set, frozenset)):
        return isinstance(found, Bag) and _same_set(found, expected)
    if isinstance(expected, (bytes, bytearray)):
        return isinstance(found, bytes) and found == bytes(expected)
    return isinstance(expected, str) and isinstance(found, str) and found == expected


def _same_items(found: Any, expected: Any) -> bool:
    if not isinstance(found, _ORDERED) or isinstance(found, (Bag, Pairs)):
        return False
    items, wanted = list(found), list(expected)
    return len(items) == len(wanted) and all(map(same, items, wanted))


def _same_dict(found: Pairs, expected: dict[Any, Any]) -> bool:
    """Every key is looked up among the expected ones, which are safe to hash."""
    left = dict(expected)
    for key, value in found:
        name = _known(key, left)
        if name is _ABSENT or not same(value, left.pop(name)):
            return False
    return not left


def _same_set(found: Bag, expected: Any) -> bool:
    left = dict.fromkeys(expected)
    for item in found:
        name = _known(item, left)
        if name is _ABSENT:
            return False
        del left[name]
    return not left


def _known(item: Any, among: dict[Any, Any]) -> Any:
    """The item as a key, if it is there and of the same type: {True} equals {1} in Python."""
    key = frozenset(item) if isinstance(item, Bag) and len(item) < 1000 else item
    try:
        there = key in among and (type(key) not in (bool, int, float) or _same_type(key, among))
    except TypeError:
        return _ABSENT
    return key if there else _ABSENT


def _same_type(key: Any, among: dict[Any, Any]) -> bool:
    if isinstance(key, bool) or key in (0, 1):
        return any(type(other) is type(key) for other in among if other == key)
    return True


def _close(found: float, expected: float) -> bool:
    try:
        value = float(found)
    except OverflowError:
        return False
    if math.isnan(expected) or math.isinf(expected) or not math.isfinite(value):
        return value == expected or (math.isnan(value) and math.isnan(expected))
    return abs(value - expected) <= TOLERANCE * max(1.0, abs(expected))


def _close_complex(found: complex, expected: complex) -> bool:
    try:
        value = complex(found)
    except OverflowError:
        return False
    return _close(value.real, expected.real) and _close(value.imag, expected.imag)
