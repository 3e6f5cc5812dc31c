"""The decider of the workers: high-precision numerics first, math-verify for what they cannot read.

math-verify rounds floats and multiplies the letters of words; both are fenced off here.
"""

from __future__ import annotations

import importlib
import logging
import re
from typing import Any

import sympy  # type: ignore[import-untyped]

from dare.rewards.math import numeric
from dare.rewards.math.decide import INFINITE, NEAR, Decide, Sides, huge, tree_of
from dare.rewards.math.expression import Tree
from dare.rewards.math.kleene import Verdict
from dare.rewards.math.normal import clean

# By name at run time: a file of that name elsewhere on the path is then not mistaken for it.
math_verify: Any = importlib.import_module("math_verify")

_DECIMAL = re.compile(r"(\d*)\.(\d+)(?!\s?\\overline)")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")
_ODD = re.compile(r"\d\s?_|\d\s\d|\d\s?\\ldots")  # it would read 90_n as 90, and 3... as 3
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_SMALL = (7, 4, 9, 5, 11, 6)  # integers, so that a sum up to n can be done
_LATEX = [math_verify.LatexExtractionConfig()]

logging.getLogger("math_verify").setLevel(logging.ERROR)


class GoldUnread(ValueError):
    """The reference itself is not understood: no answer can be judged by it."""


class Symbolic(Decide):
    """Exact arithmetic, numerics, math-verify: in this order."""

    def same(self, gold: str, answer: str) -> Verdict:
        """Are the two expressions equal?"""
        known = super().same(gold, answer)
        if known is not None:
            return known
        trees = tree_of(gold), tree_of(answer)
        if trees[0] is None or trees[1] is None:
            return _math_verify(gold, answer)
        if trees[0] in INFINITE:
            return False  # an answer that is infinite was recognised before
        if huge(trees[0]) or numeric.equal(trees[0], trees[0]) is None:
            raise GoldUnread(gold)  # it has no value anywhere
        return False

    def bare(self, gold: Tree, answer: Tree) -> Verdict:
        """Equality of two trees that carry no mark."""
        known = super().bare(gold, answer)
        return numeric.equal(gold, answer) if known is None else known

    def trees(self, gold: Tree, answer: Tree) -> Verdict:
        """`same` for trees; degrees also as radians."""
        known = super().trees(gold, answer)
        if known is False and "pi" in numeric.constants(gold) ^ numeric.constants(answer):
            return numeric.equal(gold, answer)
        return known

    def relation(self, gold: Sides, answer: Sides) -> Verdict:
        """Equal up to a constant factor, which must be positive to keep an inequality's sign."""
        trees = [tree_of(f"({left})-({right})") for left, _, right in (gold, answer)]
        if trees[0] is None or trees[1] is None:
            return gold[1] == answer[1] and _math_verify(" ".join(gold), " ".join(answer))
        if numeric.variables(trees[0]) != numeric.variables(trees[1]):
            return False
        factor = numeric.proportional(trees[0], trees[1])
        if factor is not None and gold[1] in _FLIPPED:
            return bool(factor > 0) == (gold[1] == answer[1])
        if factor is None and gold[1] == "=":  # y = 1/x says the same as xy = 1
            tops = numeric.numerator(trees[0]), numeric.numerator(trees[1])
            factor = numeric.proportional(*tops)
        return factor is not None

    def near(self, first: str, second: str) -> Verdict:
        """Are the two values close?"""
        known = super().near(first, second)
        if known is not None:
            return known
        try:
            a, b = (numeric.value(tree, {}) for tree in map(tree_of, (first, second)) if tree)
            return bool(abs(a - b) <= abs(b) * NEAR.numerator / NEAR.denominator)
        except (ValueError, KeyError, ArithmeticError, TypeError):
            return False


def parses(gold: str) -> bool:
    """Does math-verify understand a gold as something other than a text?"""
    return not _WORD.search(gold) and bool(_parse(clean(gold)))


def _math_verify(gold: str, answer: str) -> Verdict:
    if _WORD.search(gold) or _WORD.search(answer) or _ODD.search(gold) or _ODD.search(answer):
        return False  # letters of a word are not factors: `east` is not `seat`
    golds, answers = _parse(gold), _parse(answer)
    if not golds:
        raise GoldUnread(gold)
    if not answers or _symbols(golds[0]) != _symbols(answers[0]):
        return False
    if not math_verify.verify(golds, answers, timeout_seconds=None):
        return False
    return not _told_apart(golds[0], answers[0])


def _parse(text: str) -> list[Any]:
    """math-verify's reading, with decimals as fractions so that nothing is rounded."""
    exact = _DECIMAL.sub(
        lambda m: rf"\frac{{{int((m.group(1) + m.group(2))[:4000])}}}{{{10 ** len(m.group(2))}}}",
        text,
    )
    found = math_verify.parse(
        f"${exact}$", extraction_config=_LATEX, fallback_mode="no_fallback", parsing_timeout=None
    )
    return [item for item in found if not isinstance(item, str)]


def _symbols(item: Any) -> set[str] | None:
    """Names of the variables of an expression: different ones cannot be equal answers."""
    return {symbol.name for symbol in item.free_symbols} if isinstance(item, sympy.Expr) else None


def _told_apart(gold: Any, answer: Any) -> bool:
    """Do two expressions differ at 60 digits after all, with small integers for variables?"""
    if not all(isinstance(item, sympy.Expr) for item in (gold, answer)):
        return False
    names = sorted(gold.free_symbols | answer.free_symbols, key=str)
    where = dict(zip(names, _SMALL * (len(names) // len(_SMALL) + 1), strict=False))
    try:
        gold, answer = gold.subs(where), answer.subs(where)
        difference = abs((gold.doit() - answer.doit()).evalf(60, maxn=400))
        size = abs(gold.doit().evalf(60))
        return bool(difference > size * sympy.Float("1e-45", 60))
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return False
