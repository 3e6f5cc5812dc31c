"""One answer against one gold, in stages from cheap to thorough.

The same walk over the structure of both is done twice: first with exact arithmetic alone, in the
calling process, and only where that leaves the verdict open again in a worker, by `symbolic`.
Verdicts have three values, None being unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from dare_verify.math.expression import INFINITE, Decide, Verdict, tree_of, value_of
from dare_verify.math.extract import clean
from dare_verify.math.shape import (
    EMPTY,
    Shape,
    choice_of,
    clash,
    is_word,
    number_of,
    shape,
    split_unit,
    words_of,
)

_EXACT = Decide()
_SET = ("\\{", "\\}")

LONGEST = 2_000  # characters of an answer that is not a single number
DEEPEST = 25
NUMBER = re.compile(r"[-+]?(?:[\d,\s]++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d{1,4})?")
_BIG_POWER = re.compile(r"\^\s?\{?\s?-?\s?\(?(\d{6,}+)")
_TOWER = re.compile(  # three exponents inside one another, not side by side as in x^3+x^2+x^1
    r"\^\s?[{(]\s?[^{}()]{0,12}\^\s?[{(]\s?[^{}()]{0,12}\^|\^\s?\d{1,4}\s?\^\s?\d{1,4}\s?\^"
)
_BIG_FACTORIAL = re.compile(r"(?<!\d)\d{5,}+\s?\)?\s?!|!\s?\)?\s?!\s?\)?\s?!")
_UNDONE = re.compile(r"\\(?:sum|prod|i*int|oint|lim|bigcup|bigcap)(?![a-zA-Z])")
_LOGS = re.compile(r"\\(?:log|ln|lg)(?![a-zA-Z])|\blog\b|\bln\b")


def too_large(text: str) -> str | None:
    """Why an answer is refused unread; None for one that may be worked on."""
    if len(text) > LONGEST:
        if len(text) <= 120_000 and NUMBER.fullmatch(text.strip()):
            return None
        return f"{len(text)} characters"
    if re.search(r"\d{1200,}", text) and not NUMBER.fullmatch(text.strip()):
        return "long digits in an expression"
    depth = deepest = 0
    for char in text:
        depth += (char in "({[") - (char in ")}]")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        return f"nesting of {deepest}"
    if text.count("|") > DEEPEST:  # whether a bar opens or closes, a reader finds out by trial
        return "bars"
    if _BIG_POWER.search(text) or _TOWER.search(text) or text.count("^") > 150:
        return "power tower"
    if _BIG_FACTORIAL.search(text):
        return "factorial"
    if len(_UNDONE.findall(text)) > 3 or len(_LOGS.findall(text)) > 12:
        return "nested operators"
    return None


def undone(gold: str, answer: str) -> bool:
    """Does the answer leave an integral, sum, product or limit to do, and the gold does not?

    Such an answer often only repeats the question, and a computer algebra system would solve it.
    """
    return bool(_UNDONE.search(answer)) and not _UNDONE.search(gold)


def every(values: Iterable[Verdict]) -> Verdict:
    """False if any is; otherwise unknown if any is."""
    known = True
    for value in values:
        if value is False:
            return False
        known = known and value is not None
    return True if known else None


def some(values: Iterable[Verdict]) -> Verdict:
    """True if any is; otherwise unknown if any is."""
    none = every(None if value is None else not value for value in values)
    return None if none is None else not none


def paired(
    first: Sequence[Any], second: Sequence[Any], same: Callable[[Any, Any], Verdict]
) -> Verdict:
    """Can the two be paired off, each with one that is the same?"""
    if len(first) != len(second):
        return False
    table = [[same(a, b) for b in second] for a in first]
    if _perfect(table, (True,)):
        return True
    return None if _perfect(table, (True, None)) else False


def _perfect(table: list[list[Verdict]], allowed: tuple[Verdict, ...]) -> bool:
    """Is there a perfect matching along the allowed entries? (augmenting paths)"""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, value in enumerate(table[row]):
            if value in allowed and column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(table)))


Same = Callable[[Shape, Shape], Verdict]

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


_REALS = re.compile(r"(?:\\text\{ ?)?(?:all )?real(?:s| numbers) ?\}?|\\mathbb ?\{R\}|R", re.I)
_REALS_BUT = re.compile(r"\\mathbb ?\{R\} ?(?:\\setminus|\\backslash|-) ?\\\{([^,]*)\\\}")
_CLOCK = re.compile(r"\d{1,2}:[0-5]\d(?!\d)")
_OR = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])", re.I)
_PARENS = ("(", ")")


def compare(gold: Shape, answer: Shape, decide: Decide) -> Verdict:
    """True, False, or None where `decide` could not tell."""
    if gold.key == answer.key and gold.key:
        return True
    if _spoken(gold.text) == _spoken(answer.text) != "":
        return True
    if gold.kind == "any":
        return some(compare(item, answer, decide) for item in gold.items)
    if gold.kind == "relation" or answer.kind == "relation":
        return _with_relation(gold, answer, decide)
    gold, answer = _known_set(gold), _known_set(answer)
    if "union" in (gold.kind, answer.kind):
        pieces = joined(gold), joined(answer)
        if pieces[0] is not None and pieces[1] is not None:
            return pieces[0] == pieces[1]
    if _unordered(gold) or _unordered(answer):
        return _collections(gold, answer, decide)
    if gold.kind == "seq" and answer.kind == "seq":
        return gold.fence == answer.fence and _in_order(gold, answer, decide)
    if gold.kind == "matrix" and answer.kind == "matrix":
        return every(
            len(gold.items) == len(answer.items) and _in_order(a, b, decide)
            for a, b in zip(gold.items, answer.items, strict=False)
        )
    if {gold.kind, answer.kind} == {"seq", "matrix"}:
        return _column_as_tuple(gold, answer, decide)
    if gold.kind == "ratio" or answer.kind == "ratio":
        return _ratios(gold, answer, decide)
    if gold.kind == answer.kind == "leaf":
        return _leaves(gold.text, answer.text, decide)
    return False


def _with_relation(gold: Shape, answer: Shape, decide: Decide) -> Verdict:
    def same(first: Shape, second: Shape) -> Verdict:
        return compare(first, second, decide)

    if gold.kind == answer.kind:
        return relations_agree(gold, answer, same, decide)
    relation, other = (gold, answer) if gold.kind == "relation" else (answer, gold)
    interval = as_interval(relation)
    if interval is not None and other.kind != "leaf":
        return compare(interval[1], _known_set(other), decide)
    if relation is answer and "\\approx" in relation.fence:
        return closeness(relation, lambda part: compare(gold, part, decide), decide)
    value = assigned(relation)
    if value is None:
        parts = relation.items  # 2+3=5 is 5, if it is true
        if relation is gold or set(relation.fence) != {"="} or any(map(is_name, parts)):
            return False
        true = every(decide.same(parts[0].text, part.text) for part in parts[1:])
        return every([true, compare(gold, parts[-1], decide)])
    return compare(value, other, decide) if relation is gold else compare(other, value, decide)


def _known_set(item: Shape) -> Shape:
    but = _REALS_BUT.fullmatch(item.text) if item.kind == "leaf" else None
    if but:
        return shape(rf"(-\infty,{but.group(1)})\cup({but.group(1)},\infty)")
    if item.fence == ("[", "]") and item.items and all(r.fence == ("[", "]") for r in item.items):
        rows = tuple(Shape("row", row.text, row.items) for row in item.items)
        return Shape("matrix", item.text, rows, (), item.key)
    if item.kind == "leaf" and _REALS.fullmatch(item.text):
        return shape(r"(-\infty,\infty)") if item.text != "R" else item
    return item


def _unordered(item: Shape) -> bool:
    return item.kind in ("list", "union", "any") or item.fence == _SET


def _collections(gold: Shape, answer: Shape, decide: Decide) -> Verdict:
    if EMPTY in (words_of(gold.text), words_of(answer.text)):
        return words_of(gold.text) == words_of(answer.text)
    if _unordered(gold) and _unordered(answer):
        if "list" in (gold.kind, answer.kind) and _named_apart(gold) and not _named_apart(answer):
            return _in_order(gold, answer, decide)
        return paired(gold.items, answer.items, lambda a, b: compare(a, b, decide))
    if gold.fence == _PARENS and answer.kind == "list":
        return _in_order(gold, answer, decide)  # a tuple written without its parentheses
    if answer.fence == _PARENS and gold.kind == "list" and _named_apart(gold):
        return _in_order(gold, answer, decide)
    if _unordered(gold):
        if not gold.items or not _one_value(gold):
            return False  # several values are asked for, one was given
        return every(compare(item, answer, decide) for item in gold.items)
    if not answer.items or not _one_value(answer):
        return False
    return every(compare(gold, item, decide) for item in answer.items)


def _one_value(item: Shape) -> bool:
    """A set of one, or the same value in several forms: `1/2 or 0.5`."""
    return len(item.items) == 1 or (item.kind != "union" and bool(_OR.search(item.text)))


def _named_apart(item: Shape) -> bool:
    """Is this like `x=1, y=2`, where the order of bare values would matter?"""
    names = [part.items[0].key for part in item.items if part.kind == "relation"]
    return len(names) == len(item.items) and len(set(names)) > 1


def _in_order(gold: Shape, answer: Shape, decide: Decide) -> Verdict:
    if len(gold.items) != len(answer.items):
        return False
    return every(compare(a, b, decide) for a, b in zip(gold.items, answer.items, strict=True))


def _column_as_tuple(gold: Shape, answer: Shape, decide: Decide) -> Verdict:
    matrix, other = (gold, answer) if gold.kind == "matrix" else (answer, gold)
    cells = [row.items[0] for row in matrix.items if len(row.items) == 1]
    if (
        other.fence not in (_PARENS, ("[", "]"))
        or len(cells) != len(matrix.items)
        or len(cells) != len(other.items)
    ):
        return False
    return every(compare(a, b, decide) for a, b in zip(cells, other.items, strict=True))


def _ratios(gold: Shape, answer: Shape, decide: Decide) -> Verdict:
    first, second = split_unit(gold.text), split_unit(answer.text)
    if clash(first[1], second[1]):
        return False
    if _CLOCK.match(gold.key) or _CLOCK.match(answer.key):
        return first[0].strip().lstrip("0") == second[0].strip().lstrip("0")
    if gold.kind == answer.kind:
        if len(gold.items) != len(answer.items):
            return False
        pairs = list(zip(gold.items, answer.items, strict=True))
        start = pairs[0]
        return every(
            decide.same(f"({a.text})/({start[0].text})", f"({b.text})/({start[1].text})")
            for a, b in pairs[1:]
        )
    ratio, other = (gold, answer) if gold.kind == "ratio" else (answer, gold)
    if other.kind != "leaf" or len(ratio.items) != 2:
        return False
    quotient = f"({ratio.items[0].text})/({ratio.items[1].text})"
    return decide.same(quotient, other.text) if ratio is gold else decide.same(other.text, quotient)


def _leaves(gold: str, answer: str, decide: Decide) -> Verdict:
    if gold.isalpha() and answer.isalpha() and (is_word(gold) or is_word(answer)):
        return gold.lower() == answer.lower()  # as factors, `cat` would be `act`
    gold_words, answer_words = words_of(gold), words_of(answer)
    if gold_words is not None and re.fullmatch("[A-J]", gold_words) and choice_of(answer):
        return choice_of(answer) == gold_words
    if (gold_words is None) != (answer_words is None):  # one side shows that words are meant
        gold_words = words_of(gold, meant=gold_words is None)
        answer_words = words_of(answer, meant=answer_words is None)
    if gold_words is not None and answer_words is not None:
        return gold_words == answer_words
    if gold_words is not None or answer_words is not None:
        number = number_of(gold_words or answer_words or "")
        if number is None:
            return False
        gold, answer = (number, answer) if gold_words is not None else (gold, number)
    gold_text, gold_unit, gold_scale = split_unit(gold)
    answer_text, answer_unit, answer_scale = split_unit(answer)
    if clash(gold_unit, answer_unit):
        return False
    ratios = shape(gold_text), shape(answer_text)
    if ratios[0].kind == ratios[1].kind == "ratio":  # a time, once its a.m. is off
        return _ratios(*ratios, decide)
    if gold_scale != answer_scale:
        gold_text = f"({gold_text})*{gold_scale}"
        answer_text = f"({answer_text})*{answer_scale}"
    return decide.same(gold_text, answer_text)


def _spoken(text: str) -> str:
    r"""Text without its boxes, like `1 hour 30 minutes`; empty where it has none or is no text."""
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)
    spoken = re.fullmatch(r"[\w\s.,:'-]*", plain) and re.search("[A-Za-z]{3}", plain)
    return " ".join(plain.lower().split()) if spoken else ""


def quick(gold: str, answer: str) -> tuple[Verdict, str]:
    """The verdict without a worker, and which stage gave it; None where a worker is needed."""
    if gold == answer:
        return len(gold) > LONGEST or bool(clean(gold)) or None, "text"
    if undone(gold, answer):
        return False, "gate"
    refused = [too_large(text) for text in (gold, answer)]
    if max(len(gold), len(answer)) > LONGEST:
        if any(refused):
            return (None, "gold too large") if all(refused) else (False, "gate")
        return _long_numbers(gold, answer), "exact"
    if len(clean(gold)) > 2 * LONGEST:  # a sign of unicode may stand for a long command
        return None, "gold too large"
    if len(clean(answer)) > 2 * LONGEST:
        return False, "gate"
    try:
        verdict = compare(shape(gold), shape(answer), _EXACT)
    except RecursionError:
        verdict = None
    if verdict is None and any(refused):
        return (None, "gold too large") if all(refused) else (False, "gate")
    return verdict, "exact"


def _long_numbers(gold: str, answer: str) -> bool:
    """Numbers of thousands of digits, written out on one side at least."""
    values = []
    for text in (gold, answer):
        tree = tree_of("".join(text.split()) if NUMBER.fullmatch(text.strip()) else clean(text))
        values.append(value_of(tree) if tree else None)
    return values[0] is not None and values[0] == values[1]


def thorough(gold: str, answer: str, decide: Decide) -> Verdict:
    """The verdict of a worker."""
    return compare(shape(gold), shape(answer), decide)


def readable(item: Shape) -> bool:
    """Is every leaf of a gold a number, an expression of the exact reader, or words?"""
    if item.items:
        return all(map(readable, item.items))
    return words_of(item.text) is not None or tree_of(split_unit(item.text)[0]) is not None
