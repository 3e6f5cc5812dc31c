"""Equations and inequalities: which are assignments, which are intervals, which say the same."""

from __future__ import annotations

import re
from collections.abc import Callable

from dare.rewards.math.decide import Decide
from dare.rewards.math.kleene import Verdict, every, some
from dare.rewards.math.shape import Shape, shape

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


def value_of(relation: Shape) -> Shape | None:
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
    values = value_of(gold), value_of(answer)
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
