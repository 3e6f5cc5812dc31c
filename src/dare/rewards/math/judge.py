"""One answer against one gold: the three stages, from cheap to thorough."""

from __future__ import annotations

from dare.rewards.math.compare import compare
from dare.rewards.math.decide import Decide, tree_of, value_of
from dare.rewards.math.gate import LONGEST, NUMBER, too_large, undone
from dare.rewards.math.kleene import Verdict
from dare.rewards.math.normal import clean
from dare.rewards.math.shape import Shape, shape
from dare.rewards.math.units import split_unit
from dare.rewards.math.words import words_of

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
