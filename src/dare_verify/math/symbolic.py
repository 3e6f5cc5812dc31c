"""The decider of the workers: evaluation first, math-verify for what that cannot read.

Two expressions that agree to 400 digits are equal for every purpose of a grader, and two values
that differ beyond the precision of a float are told apart. math-verify rounds floats and
multiplies the letters of words; both are fenced off here.
"""

from __future__ import annotations

import importlib
import logging
import random
import re
from typing import Any

import sympy  # type: ignore[import-untyped]
from mpmath import mp  # type: ignore[import-untyped]

from dare_verify.math.expression import (
    INFINITE,
    NEAR,
    Decide,
    Irrational,
    Sides,
    TooBig,
    Tree,
    Verdict,
    based_value,
    huge,
    tree_of,
)
from dare_verify.math.extract import clean

_DIGITS = (50, 400)
_POINTS = 4  # with positive values, and as many with either sign


class NotNumeric(ValueError):
    """No value at this point."""


def equal(first: Tree, second: Tree) -> Verdict:
    """Are the two equal wherever both have a value? None where no point could tell."""
    names = sorted(variables(first) | variables(second))
    complex_ = "i" in constants(first) | constants(second)
    seen = 0
    for point in range(2 * _POINTS if names else 1):
        differences, size = [], mp.mpf(1)
        try:
            for digits in (0, *_DIGITS):  # the first time only to see how large the values are
                with mp.workdps(digits + 15 + _magnitude(size)):
                    where = place(names, point)
                    a, b = value(first, where), value(second, where)
                    if point >= _POINTS and not complex_ and (_unreal(a) or _unreal(b)):
                        raise NotNumeric
                    differences.append(abs(a - b))
                    size = max(abs(a), abs(b))
        except (NotNumeric, Irrational, TooBig, ValueError, ArithmeticError, TypeError):
            continue
        if not all(map(mp.isfinite, differences)):
            continue
        seen += 1
        if not vanishes(differences[1], differences[2], size):
            return False
    return True if seen >= (2 if names else 1) else None


def proportional(first: Tree, second: Tree) -> Any | None:
    """The constant c with first = c * second at all points; None where there is none."""
    names = sorted(variables(first) | variables(second))
    ratios: list[Any] = []
    with mp.workdps(60):
        for point in range(2 * _POINTS):
            try:
                where = place(names, point)
                a, b = value(first, where), value(second, where)
                if b == 0 or a == 0:
                    continue
                ratios.append(a / b)
            except (NotNumeric, Irrational, TooBig, ValueError, ArithmeticError, TypeError):
                continue
        if len(ratios) < 3 or not names:
            return None
        spread = max(abs(ratio - ratios[0]) for ratio in ratios)
        if spread > mp.mpf(10) ** -45 * abs(ratios[0]) or _unreal(ratios[0]):
            return None
        return mp.re(ratios[0])


def numerator(tree: Tree) -> Tree:
    """The numerator of a tree brought over one denominator."""
    return _fraction(tree)[0]


def _fraction(tree: Tree) -> tuple[Tree, Tree]:
    one: Tree = ("num", 1)
    if tree[0] == "neg":
        top, low = _fraction(tree[1])
        return ("neg", top), low
    if tree[0] not in ("add", "mul", "div"):
        return tree, one
    (a, b), (c, d) = _fraction(tree[1]), _fraction(tree[2])
    if tree[0] == "add":
        return ("add", ("mul", a, d), ("mul", c, b)), ("mul", b, d)
    return (("mul", a, c), ("mul", b, d)) if tree[0] == "mul" else (("mul", a, d), ("mul", b, c))


def vanishes(coarse: Any, fine: Any, size: Any) -> bool:
    """Is a difference zero, seen at two precisions? Noise shrinks with them, a difference stays."""
    if fine == 0:
        return True
    return bool(fine <= min(size, 1) * mp.mpf(10) ** -390 or fine <= coarse * mp.mpf(10) ** -300)


def _magnitude(size: Any) -> int:
    """Digits before the point, which the precision must cover on top of those behind it."""
    if not mp.isfinite(size) or size > mp.mpf(10) ** 2000:
        raise NotNumeric
    return max(0, int(mp.log10(size))) if size > 1 else 0


def place(names: list[str], point: int) -> dict[str, Any]:
    """Values for the variables: the same for the same names, of either sign in the second half."""
    chosen = {}
    for name in names:
        draw = random.Random(f"{name}/{point}")
        number = mp.mpf(draw.randrange(10**6, 3 * 10**6)) / 1_000_003
        chosen[name] = -number if point >= _POINTS and draw.random() < 0.6 else number
    return chosen


def variables(tree: Tree) -> set[str]:
    """Names of the variables of a tree."""
    return _collect(tree, "var")


def constants(tree: Tree) -> set[str]:
    """Names of the constants of a tree."""
    return _collect(tree, "const")


def _collect(tree: Tree, kind: str) -> set[str]:
    if tree[0] == kind:
        return {tree[1]}
    return set().union(*(_collect(part, kind) for part in tree[1:] if isinstance(part, tuple)))


def _unreal(number: Any) -> bool:
    return bool(abs(mp.im(number)) > mp.mpf(10) ** -30 * (1 + abs(mp.re(number))))


def value(tree: Tree, where: dict[str, Any]) -> Any:
    """The value of a tree at a point, in mpmath's current precision."""
    kind, rest = tree[0], tree[1:]
    if kind == "num":
        return mp.mpf(rest[0].numerator) / rest[0].denominator
    if kind == "var":
        return where[rest[0]]
    if kind == "const":
        return _constant(rest[0])
    if kind == "based":
        return mp.mpf(based_value(rest[0], rest[1]))
    if kind == "fn":
        return _function(rest[0], [value(part, where) for part in rest[1:]])
    parts = [value(part, where) for part in rest]
    if kind == "neg":
        return -parts[0]
    if kind == "add":
        return parts[0] + parts[1]
    if kind == "mul":
        return parts[0] * parts[1]
    if kind == "pct":
        return parts[0] / 100
    if kind == "deg":
        return parts[0] * mp.pi / 180
    if kind == "div":
        if parts[1] == 0:
            raise NotNumeric
        return parts[0] / parts[1]
    return _power(parts[0], parts[1])


def _constant(name: str) -> Any:
    if name == "inf":
        raise NotNumeric
    return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}[name]


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > 10**6 or (base == 0 and mp.re(exponent) <= 0):
        raise NotNumeric
    return mp.power(base, exponent)


def _function(name: str, parts: list[Any]) -> Any:
    argument = parts[0]
    if name in ("factorial", "binomial", "exp", "sinh", "cosh") and abs(argument) > 10**5:
        raise NotNumeric
    if name == "log" and len(parts) == 2:
        return mp.log(argument) / mp.log(parts[1])
    if name in ("floor", "ceiling", "abs"):
        return {"floor": mp.floor, "ceiling": mp.ceil, "abs": abs}[name](argument)
    renamed = {"log": "ln", "lg": "log10", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
               "arccot": "acot", "arcsec": "asec", "arccsc": "acsc"}  # fmt: skip
    if name == "log":
        return mp.log10(argument)
    return getattr(mp, renamed.get(name, name))(*parts)


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
        if huge(trees[0]) or equal(trees[0], trees[0]) is None:
            raise GoldUnread(gold)  # it has no value anywhere
        return False

    def bare(self, gold: Tree, answer: Tree) -> Verdict:
        """Equality of two trees that carry no mark."""
        known = super().bare(gold, answer)
        return equal(gold, answer) if known is None else known

    def trees(self, gold: Tree, answer: Tree) -> Verdict:
        """`same` for trees; degrees also as radians."""
        known = super().trees(gold, answer)
        if known is False and "pi" in constants(gold) ^ constants(answer):
            return equal(gold, answer)
        return known

    def relation(self, gold: Sides, answer: Sides) -> Verdict:
        """Equal up to a constant factor, which must be positive to keep an inequality's sign."""
        trees = [tree_of(f"({left})-({right})") for left, _, right in (gold, answer)]
        if trees[0] is None or trees[1] is None:
            return gold[1] == answer[1] and _math_verify(" ".join(gold), " ".join(answer))
        if variables(trees[0]) != variables(trees[1]):
            return False
        factor = proportional(trees[0], trees[1])
        if factor is not None and gold[1] in _FLIPPED:
            return bool(factor > 0) == (gold[1] == answer[1])
        if factor is None and gold[1] == "=":  # y = 1/x says the same as xy = 1
            tops = numerator(trees[0]), numerator(trees[1])
            factor = proportional(*tops)
        return factor is not None

    def near(self, first: str, second: str) -> Verdict:
        """Are the two values close?"""
        known = super().near(first, second)
        if known is not None:
            return known
        try:
            a, b = (value(tree, {}) for tree in map(tree_of, (first, second)) if tree)
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
