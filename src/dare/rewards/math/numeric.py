"""Equality of expressions by evaluation to 50 and 400 digits, at several points where needed.

Two expressions that agree to 400 digits are equal for every purpose of a grader, and two values
that differ beyond the precision of a float are told apart. Runs in a worker: needs mpmath.
"""

from __future__ import annotations

import random
from typing import Any

from mpmath import mp  # type: ignore[import-untyped]

from dare.rewards.math.exact import Irrational, based_value
from dare.rewards.math.expression import Tree
from dare.rewards.math.kleene import Verdict
from dare.rewards.math.literal import TooBig

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
