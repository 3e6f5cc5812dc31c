"""Sets of rational intervals and points, joined where they touch: [1,2] and [2,3] make [1,3]."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from dare.rewards.math.decide import INFINITE, tree_of, value_of
from dare.rewards.math.shape import Shape

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
