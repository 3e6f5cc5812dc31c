"""Exact rational values of expression trees, with bounds so that no power tower is ever built."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dare.rewards.math.expression import Tree
from dare.rewards.math.literal import TooBig

MOST_BITS = 400_000  # of a value; numbers written out may be that long
_POWER_BITS = 60_000  # of a power: two hundred of them fit into an answer, each must be cheap
_GCD_COST = 10**9  # the product of two lengths in bits: about 3 ms
_MOST_FACTORIAL = 3_000
_MOST_BINOMIAL = 5_000


class Irrational(ValueError):
    """Not a rational number, or not known to be one."""


def evaluate(tree: Tree) -> Fraction:
    """The value of a tree that is a rational number; else `Irrational` or `TooBig`."""
    kind = tree[0]
    if kind == "num":
        return Fraction(tree[1])
    if kind == "based":
        return Fraction(based_value(tree[1], tree[2]))
    if kind == "pct":
        return evaluate(tree[1]) / 100
    if kind == "neg":
        return -evaluate(tree[1])
    if kind in _BINARY:
        return _bounded(_BINARY[kind](*_affordable(evaluate(tree[1]), evaluate(tree[2]))))
    if kind == "fn" and tree[1] in _FUNCTIONS:
        return _bounded(_FUNCTIONS[tree[1]](*(evaluate(part) for part in tree[2:])))
    raise Irrational(kind)


def based_value(digits: str, base: int) -> int:
    """`digits` read in `base`."""
    if len(digits) > 2000:
        raise TooBig("digits in another base")
    try:
        return int(digits, base)
    except ValueError as error:
        raise Irrational("not a digit of that base") from error


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > MOST_BITS:
        raise TooBig("value")
    return value


def _affordable(first: Fraction, second: Fraction) -> tuple[Fraction, Fraction]:
    """Both, if bringing them to lowest terms together is cheap; nothing here can be killed."""
    sizes = [
        (part.numerator.bit_length(), part.denominator.bit_length()) for part in (first, second)
    ]
    if max(sizes[0]) * sizes[1][1] > _GCD_COST or sizes[0][1] * max(sizes[1]) > _GCD_COST:
        raise TooBig("common denominator")
    return first, second


def _divide(top: Fraction, low: Fraction) -> Fraction:
    if low == 0:
        raise Irrational("division by zero")
    if top.numerator.bit_length() * low.numerator.bit_length() > _GCD_COST:
        raise TooBig("quotient")
    return top / low


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        base = _root(base, exponent.denominator)
        exponent = Fraction(exponent.numerator)
    if base == 0 and exponent <= 0:
        raise Irrational("0 to such a power")
    bits = math.log2(max(abs(base.numerator), base.denominator))
    if base not in (0, 1, -1) and abs(exponent) * bits > _POWER_BITS:
        raise TooBig("power")
    if base in (1, -1):
        return base if exponent % 2 else Fraction(1)
    return base**exponent.numerator


def _root(base: Fraction, index: int) -> Fraction:
    """The rational root, where there is one; a negative base has none on the principal branch."""
    if base < 0 or index > 64:
        raise Irrational("root")
    top, low = _integer_root(base.numerator, index), _integer_root(base.denominator, index)
    return Fraction(top, low)


def _integer_root(value: int, index: int) -> int:
    if value.bit_length() > (60_000 if index == 2 else 6_000):
        raise TooBig("root")
    if value < 2:
        return value
    root = step = math.isqrt(value) if index == 2 else 1 << -(-value.bit_length() // index)
    while index > 2:  # Newton's iteration from above: bisection would take thousands of steps
        step = ((index - 1) * root + value // root ** (index - 1)) // index
        if step >= root:
            break
        root = step
    if root**index != value:
        raise Irrational("root")
    return root


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or value < 0:
        raise Irrational("factorial")
    if value > _MOST_FACTORIAL:
        raise TooBig("factorial")
    return Fraction(math.factorial(value.numerator))


def _binomial(count: Fraction, chosen: Fraction) -> Fraction:
    if count.denominator != 1 or chosen.denominator != 1 or count < 0 or chosen < 0:
        raise Irrational("binomial")
    if count > _MOST_BINOMIAL:
        raise TooBig("binomial")
    return Fraction(math.comb(count.numerator, chosen.numerator))


_BINARY: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "pow": _power,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "factorial": _factorial,
    "binomial": _binomial,
    "abs": abs,
    "floor": lambda a: Fraction(math.floor(a)),
    "ceiling": lambda a: Fraction(math.ceil(a)),
}
