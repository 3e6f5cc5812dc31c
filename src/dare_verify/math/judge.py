"""One answer against one gold, in stages from cheap to thorough.

The same walk over the structure of both is done twice: first with exact arithmetic alone, in the
calling process, and only where that leaves the verdict open again in a worker, by `symbolic`.
"""

from __future__ import annotations

import re

from dare_verify.math.latex import clean
from dare_verify.math.relations import (
    as_interval,
    assigned,
    closeness,
    is_name,
    joined,
    relations_agree,
)
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
from dare_verify.math.values import Decide, Verdict, every, paired, some, tree_of, value_of

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


_REALS = re.compile(r"(?:\\text\{ ?)?(?:all )?real(?:s| numbers) ?\}?|\\mathbb ?\{R\}|R", re.I)
_REALS_BUT = re.compile(r"\\mathbb ?\{R\} ?(?:\\setminus|\\backslash|-) ?\\\{([^,]*)\\\}")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+")
_CLOCK = re.compile(r"\d{1,2}:[0-5]\d(?!\d)")
_OR = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])", re.I)
_SET = ("\\{", "\\}")
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
    gold, answer = _reread(gold, answer), _reread(answer, gold)
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


def _reread(item: Shape, other: Shape) -> Shape:
    """`100,200` is a number unless what it is compared with is a list."""
    if item.kind == "leaf" and other.kind in ("list", "seq") and _THOUSANDS.fullmatch(item.key):
        return shape(item.text.replace(",", " , "))
    return item


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


_EXACT = Decide()


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
