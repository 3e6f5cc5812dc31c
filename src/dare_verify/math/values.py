"""What an expression is worth, exactly; verdicts of three values, None being unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from dare_verify.math.expression import TooBig, Tree, Unread, read

Verdict = bool | None


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
    known = True
    for value in values:
        if value is True:
            return True
        known = known and value is not None
    return False if known else None


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


Sides = tuple[str, str, str]
INFINITE: dict[Tree, int] = {("const", "inf"): 1, ("neg", ("const", "inf")): -1}
_LARGEST_POWER = 10**5
NEAR = Fraction(1, 50)  # how far the two sides of an approximation may lie apart, relatively


class Decide:
    """The exact decider, which needs no worker; `symbolic.Symbolic` extends it."""

    def same(self, gold: str, answer: str) -> Verdict:
        """Are the two expressions equal?"""
        trees = tree_of(gold), tree_of(answer)
        if trees[0] is None or trees[1] is None:
            return None
        return self.trees(trees[0], trees[1])

    def relation(self, gold: Sides, answer: Sides) -> Verdict:
        """Do two relations, given as left side, sign, right side, have the same solutions?"""
        return None

    def near(self, first: str, second: str) -> Verdict:
        """Are the two values close, as the two sides of an approximation should be?"""
        values = [value_of(tree) for tree in (tree_of(first), tree_of(second)) if tree]
        if len(values) < 2 or values[0] is None or values[1] is None:
            return None
        return abs(values[0] - values[1]) <= NEAR * abs(values[1])

    def trees(self, gold: Tree, answer: Tree) -> Verdict:
        """`same` for trees; per cent, degrees and bases are looked at from outside."""
        if gold == answer or fold(gold) == fold(answer):
            return True
        sizes = huge(gold), huge(answer)
        if any(sizes):
            return _huge_powers(fold(gold), fold(answer)) if all(sizes) else False
        if "based" in (gold[0], answer[0]):
            return _bases(gold, answer)
        (gold_mark, gold_bare), (answer_mark, answer_bare) = unmark(gold), unmark(answer)
        if gold_mark == answer_mark == "":
            return self.bare(gold, answer)
        if "pct" in (gold_mark, answer_mark):
            return self._percent(gold_mark, gold_bare, answer_mark, answer_bare)
        return self.bare(gold_bare, answer_bare)  # 90 degrees, with or without the sign

    def bare(self, gold: Tree, answer: Tree) -> Verdict:
        """Equality of two trees that carry no mark."""
        infinite = INFINITE.get(gold), INFINITE.get(answer)
        values = value_of(gold), value_of(answer)
        if infinite != (None, None):
            known = all(
                a is not None or b is not None for a, b in zip(infinite, values, strict=True)
            )
            return infinite[0] == infinite[1] if known else None
        if values[0] is None or values[1] is None:
            return None
        return values[0] == values[1]

    def _percent(self, gold_mark: str, gold: Tree, answer_mark: str, answer: Tree) -> Verdict:
        """10% is 10% and 0.1; the sign may also be left out where it can be meant, as in MATH."""
        literal = self.bare(gold, answer)
        if gold_mark == answer_mark or literal is None:
            return literal
        number = value_of(answer)
        droppable = gold_mark == "pct" or (number is not None and abs(number) >= 1)
        if literal and droppable:
            return True
        hundredth = [("div", tree, ("num", 100)) if mark == "pct" else tree
                     for mark, tree in ((gold_mark, gold), (answer_mark, answer))]  # fmt: skip
        return self.bare(hundredth[0], hundredth[1])


def tree_of(text: str) -> Tree | None:
    """The tree, or None where the text is not understood or out of bounds."""
    try:
        return read(text.strip()) if len(text) < 4000 else read.__wrapped__(text.strip())
    except (Unread, TooBig, RecursionError):
        return None


def value_of(tree: Tree) -> Fraction | None:
    """The exact rational value, where there is one within bounds."""
    try:
        return evaluate(tree)
    except (Irrational, TooBig, RecursionError):
        return None


def fold(tree: Tree) -> Tree:
    """The tree with every part of rational value replaced by it: 10^{10^{10}} keeps one power."""
    if tree[0] in ("num", "var", "const", "based"):
        return ("num", Fraction(tree[1])) if tree[0] == "num" else tree
    parts = tuple(fold(part) if isinstance(part, tuple) else part for part in tree[1:])
    folded = (tree[0], *parts)
    if tree[0] in ("pct", "deg") or any(p[0] != "num" for p in parts if isinstance(p, tuple)):
        return folded
    value = value_of(folded)
    return folded if value is None else ("num", value)


def huge(tree: Tree) -> bool:
    """Is there a power or factorial in it beyond all bounds?"""
    folded = fold(tree)
    return _huge(folded)


def _huge(tree: Tree) -> bool:
    last = tree[-1]
    if tree[0] == "pow" and last[0] == "num" and abs(last[1]) > _LARGEST_POWER:
        return True
    if tree[0] == "pow" and tree[1][0] == "num" and last[0] == "num" and last[1].denominator == 1:
        return True  # it was not folded, so it is out of bounds
    if tree[:2] == ("fn", "factorial") and last[0] == "num" and last[1] > 3000:
        return True
    return any(_huge(part) for part in tree[1:] if isinstance(part, tuple))


def _huge_powers(gold: Tree, answer: Tree) -> Verdict:
    """2^{100000} is 4^{50000}: what counts are the powers once their exponents share no factor."""
    if gold[0] != "pow" or answer[0] != "pow":
        return None
    parts = [*gold[1:], *answer[1:]]
    if any(part[0] != "num" or part[1].denominator != 1 or part[1] < 2 for part in parts):
        return None
    first, m, second, n = (part[1].numerator for part in parts)
    if first == second:
        return bool(m == n)
    shared = math.gcd(m, n)
    if max(m, n) // shared > 50 or max(first, second) > 10**50:
        return None
    return bool(first ** (m // shared) == second ** (n // shared))


def unmark(tree: Tree) -> tuple[str, Tree]:
    """A trailing per-cent or degree sign, and the tree without it."""
    if tree[0] in ("pct", "deg"):
        return tree[0], tree[1]
    if tree[0] == "neg" and tree[1][0] in ("pct", "deg"):
        return tree[1][0], ("neg", tree[1][1])
    return "", tree


def _bases(gold: Tree, answer: Tree) -> Verdict:
    """Numbers in a base: the digits count, and the base where both name it.

    Equal value in another base is not enough: 5 is no answer to "write 5 in base 2".
    """
    digits = []
    for tree in (gold, answer):
        if tree[0] == "based":
            digits.append(tree[1].lstrip("0"))
        elif tree[0] == "num" and Fraction(tree[1]).denominator == 1:
            digits.append(str(tree[1]) if tree[1] < 10**4000 else "")
        else:
            return False
    bases = {tree[2] for tree in (gold, answer) if tree[0] == "based"}
    return len(bases) == 1 and digits[0] == digits[1]
