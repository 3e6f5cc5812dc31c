"""Equations, inequalities and sets of intervals: which assign, and which say the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from dare_verify.math.shape import Shape, shape
from dare_verify.math.values import INFINITE, Decide, Verdict, every, some, tree_of, value_of

Same = Callable[[Shape, Shape], Verdict]

_EXACT = Decide()
_FLIP = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "=": "=", "\\ne": "\\ne"}
_INDEX = re.compile(r"_\s?\{[^{}]*\}|_\s?\w|\\log ?_")
_CALL = re.compile(r"(?<=[A-Za-z'])\s?\([^()]*\)|(?<=[A-Za-z'])\s?\[[^\[\]]*\]")
_LETTER = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?|\\[a-z]+ ?")


def is_name(item: Shape) -> bool:
    """Something being named, like x, f(2), AB or m+n: letters, and digits only as indices."""
    text = _CALL.sub("", _INDEX.sub("", item.text)).strip()
    if item.kind == "seq":
        return all(map(is_name, item.items))
    if text.startswith("-") or not re.search("[A-Za-z]", text):
        return False  # -x = 5 does not say that x is 5
    if re.search(r"\\(?:pi|infty|frac|sqrt)(?![a-z])", text):
        return False
    return item.kind == "leaf" and not any(char.isdigit() for char in text)


def assigned(relation: Shape) -> Shape | None:
    """What `x = ... = value` assigns; None where it is no assignment."""
    if set(relation.fence) != {"="}:
        return None
    first, last = relation.items[0], relation.items[-1]
    if is_name(first):
        return last if _consistent(relation.items[1:]) else None
    return first if is_name(last) and len(relation.items) == 2 else None


def _consistent(parts: tuple[Shape, ...]) -> bool:
    """Is `x = 6/2 = 3` free of contradictions, as far as exact arithmetic can tell?"""
    return all(_EXACT.same(part.text, parts[-1].text) is not False for part in parts[:-1])


def as_interval(relation: Shape) -> tuple[str, Shape] | None:
    """The name and the interval of `a < x <= b`, `x > a` or `x != a`; None for other relations."""
    signs, parts = relation.fence, relation.items
    if len(parts) == 2 and signs[0] in _FLIP and signs[0] != "=":
        if is_name(parts[0]):
            name, bound, sign = parts[0], parts[1], signs[0]
        elif is_name(parts[1]):
            name, bound, sign = parts[1], parts[0], _FLIP[signs[0]]
        else:
            return None
        text = bound.text
        forms = {
            "<": rf"(-\infty,{text})",
            "\\le": rf"(-\infty,{text}]",
            ">": rf"({text},\infty)",
            "\\ge": rf"[{text},\infty)",
            "\\ne": rf"(-\infty,{text})\cup({text},\infty)",
        }
        return name.key, shape(forms[sign])
    if len(parts) == 3 and is_name(parts[1]):
        low, high = parts[0].text, parts[2].text
        rising, falling = {"<", "\\le"}, {">", "\\ge"}
        if set(signs) <= falling:
            low, high, signs = high, low, (_FLIP[signs[1]], _FLIP[signs[0]])
        elif not set(signs) <= rising:
            return None
        left = "(" if signs[0] == "<" else "["
        right = ")" if signs[1] == "<" else "]"
        return parts[1].key, shape(f"{left}{low},{high}{right}")
    return None


def relations_agree(gold: Shape, answer: Shape, same: Same, decide: Decide) -> Verdict:
    """Do two relations say the same?"""
    intervals = as_interval(gold), as_interval(answer)
    if intervals[0] and intervals[1]:
        return intervals[0][0] == intervals[1][0] and same(intervals[0][1], intervals[1][1])
    values = assigned(gold), assigned(answer)
    if values[0] and values[1]:
        names = [
            (item.items[0] if value is item.items[-1] else item.items[-1]).key
            for item, value in zip((gold, answer), values, strict=True)
        ]
        if names[0] == names[1]:
            return same(values[0], values[1])
        if all(len(_LETTER.findall(name)) == 1 for name in names):
            mixed = any(_LETTER.search(value.text) for value in values if value)
            if not mixed:
                return False  # x=5 is not y=5
    if len(gold.items) != 2 or len(answer.items) != 2:
        alike = gold.fence == answer.fence and len(gold.items) == len(answer.items)
        return alike and every(map(same, gold.items, answer.items))
    if answer.fence[0] not in (gold.fence[0], _FLIP.get(gold.fence[0])):
        return False
    if gold.fence == answer.fence and every(map(same, gold.items, answer.items)):
        return True
    sides = [(item.items[0].text, item.fence[0], item.items[1].text) for item in (gold, answer)]
    return decide.relation(sides[0], sides[1])


def closeness(relation: Shape, same: Callable[[Shape], Verdict], decide: Decide) -> Verdict:
    r"""`2\sqrt3 \approx 3.46` is right if either side is, and the two are indeed close."""
    parts = [part for part in relation.items if not is_name(part)]
    if not parts:
        return False
    close = every(decide.near(parts[0].text, part.text) for part in parts[1:])
    return every([close, some(map(same, parts))])


_SET = ("\\{", "\\}")
_Bound = tuple[int, Fraction]  # (-1 | 0 | 1, value): minus infinity, finite, infinity


class Piece(NamedTuple):
    """An interval; a point is closed on both sides."""

    low: _Bound
    high: _Bound
    low_closed: bool
    high_closed: bool


def joined(item: Shape) -> list[Piece] | None:
    """The pieces of a union in order, as few as possible; None where an end is no rational."""
    pieces = []
    for part in item.items if item.kind == "union" else (item,):
        found = _pieces(part)
        if found is None:
            return None
        pieces.extend(found)
    pieces.sort(key=lambda piece: (piece.low, not piece.low_closed))
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last is None or not _touch(last, piece):
            merged.append(piece)
        else:
            end = max((last.high, last.high_closed), (piece.high, piece.high_closed))
            merged[-1] = last._replace(high=end[0], high_closed=end[1])
    return merged


def _touch(left: Piece, right: Piece) -> bool:
    if right.low == left.high:
        return right.low_closed or left.high_closed
    return right.low < left.high


def _pieces(part: Shape) -> list[Piece] | None:
    if part.kind != "seq":
        return None
    ends = [_bound(end) for end in part.items]
    known = [end for end in ends if end is not None]
    if len(known) != len(ends):
        return None
    if part.fence == _SET:
        return [Piece(end, end, True, True) for end in known if not end[0]]
    if len(known) != 2 or part.fence[0] not in "([" or known[0] >= known[1]:
        return None
    return [Piece(known[0], known[1], part.fence[0] == "[", part.fence[1] == "]")]


def _bound(item: Shape) -> _Bound | None:
    tree = tree_of(item.text) if item.kind == "leaf" else None
    if tree is None:
        return None
    if tree in INFINITE:
        return INFINITE[tree], Fraction(0)
    value = value_of(tree)
    return None if value is None else (0, value)
