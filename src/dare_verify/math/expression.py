"""A small reader of mathematical expressions, LaTeX or plain, into a tree of tuples; what a tree is
worth, exactly; and whether two are equal, as far as exact arithmetic can tell.

Nodes: ("num", Fraction) · ("var", name) · ("const", name) · ("neg", a) · ("add" | "mul" | "div" |
"pow", a, b) · ("fn", name, a, ...) · ("pct", a) · ("deg", a) · ("based", digits, base).
What it does not know it refuses (`Unread`), so that nothing is misread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

Verdict = bool | None  # None is unknown

MOST_DIGITS = 100_000
MOST_EXPONENT = 20_000
_CHUNK = 4000  # Python refuses to convert more than 4300 digits at once

_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,])|\d{1,3}(?: \d{3})+(?! ?\d)")
_PLAIN = re.compile(r"\d+")
_EXPONENT = re.compile(r"[eE]([+-]?\d{1,9})(?![\d.])")
_DOTS = re.compile(r"\s?\\dot ?\{(\d)\}(\d*)\s?\\dot ?\{(\d)\}")
_PERIOD = re.compile(
    r"\s?\\overline\s*\{(\d+)\}|\s?\\overline (\d)|\((\d+)\)(?=\s?%?$)|\\dot\s*\{(\d)\}"
)


class TooBig(ValueError):
    """A number or power beyond what an answer may reasonably contain."""


def read_number(text: str, start: int) -> tuple[Fraction, int, bool] | None:
    """The number at `start`: its value, where it ends, and whether it is a plain integer."""
    whole = _GROUPED.match(text, start) or _PLAIN.match(text, start)
    place = whole.end() if whole else start
    digits = re.sub(r"\D", "", whole.group()) if whole else ""
    tail, period = "", ""
    plain = True
    if text.startswith(".", place):
        fraction = _PLAIN.match(text, place + 1)
        tail = fraction.group() if fraction else ""
        after = place + 1 + len(tail)
        repeat = _PERIOD.match(text, after)
        if dotted := _DOTS.match(text, after):
            period, after = "".join(dotted.groups()), dotted.end()
        elif repeat and not (repeat.group(3) and not whole):
            period = next(group for group in repeat.groups() if group)
            after = repeat.end()
        elif dots := re.match(r"\s?\\ldots ?", text[after : after + 9]):
            period = _guess_period(tail)
            if not period:
                return None
            after += dots.end()
        if whole or tail or period:
            place, plain = after, False
    if place == start:
        return None
    value = _assemble(digits or "0", tail, period)
    power = _EXPONENT.match(text, place)
    if (power and whole is not None) or (power and tail):
        exponent = int(power.group(1))
        if abs(exponent) > MOST_EXPONENT:
            raise TooBig(f"exponent {exponent}")
        value, place, plain = value * Fraction(10) ** exponent, power.end(), False
    return value, place, plain


def to_int(digits: str) -> int:
    """An integer of up to 100,000 digits."""
    if len(digits) > MOST_DIGITS:
        raise TooBig(f"{len(digits)} digits")
    value = 0
    for at in range(0, len(digits), _CHUNK):
        chunk = digits[at : at + _CHUNK]
        value = value * 10 ** len(chunk) + int(chunk)
    return value


def _assemble(digits: str, tail: str, period: str) -> Fraction:
    value = Fraction(to_int(digits + tail), 10 ** len(tail)) if tail else Fraction(to_int(digits))
    if period:
        value += Fraction(to_int(period), (10 ** len(period) - 1) * 10 ** len(tail))
    return value


def _guess_period(tail: str) -> str:
    r"""What repeats in the digits before `\ldots`; empty where nothing clearly does."""
    for size in range(1, len(tail) // 2 + 1):
        unit = tail[-size:]
        times = 1
        while tail[: -size * times].endswith(unit):
            times += 1
        if times >= 3 or (times == 2 and size >= 2 and size * times == len(tail)):
            return unit
    return ""


UNARY = (
    "arcsin|arccos|arctan|arccot|arcsec|arccsc|asin|acos|atan|sinh|cosh|tanh|sin|cos|tan|cot|sec|"
    "csc|ln|log|lg|exp|gcd|lcm|max|min"
)
FUNCTION = re.compile(rf"\\({UNARY})(?![a-zA-Z])|({UNARY})(?![a-zA-Z])")
WORD_CONSTANT = re.compile(r"(pi|sqrt|infinity|inf|oo)(?![a-zA-Z])")
GREEK = (
    r"\\(alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|"
    r"upsilon|phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell|hbar)"
    r"(?![a-zA-Z])"
)
NAME = re.compile(rf"{GREEK}|([A-Za-z])|\\text\{{\s*([A-Za-z])\s*\}}|\\mathbb\s*\{{([A-Z])\}}")
SUBSCRIPT = re.compile(
    r"\s?_\s?(?:([A-Za-z0-9])|\{\s*\\text\{\s*([A-Za-z0-9, ]+?)\s*\}\s*\}"
    r"|\{\s*\\?([A-Za-z0-9, +-]+?)\s*\}|\\text\{\s*([A-Za-z0-9, ]+?)\s*\})"
)
CALLED = frozenset("fghFG")
CALL = re.compile(r"\(\s?-?\d+\s?\)(?!\s?\^)")
CALL_ANY = re.compile(r"\([^()]*\)")
ACCENT = re.compile(r"\\(vec|hat|dot|ddot|tilde|widehat|overrightarrow)(?![a-zA-Z])")
BASE = re.compile(r"\s?_\s?(?:(\d+)|\{\s*\(?(\d+)\)?\s*\}|\{\s*\\text\{\s*([a-z]+)\s*\}\s*\})")
BASED = re.compile(r"((?=[A-Z.]*[0-9])[0-9A-Z.]++)(?=\s?_\s?[\d{])")
BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
BASES |= {"nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16}
FENCES = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil", "|": "|"}
STOP = re.compile(r"[-+*/=<>,;:)\]}|!^%']|\\(?:rfloor|rceil|\}|%|pm|mp|ldots)|$")


Tree = tuple[Any, ...]
MOST_DEPTH = 40


class Unread(ValueError):
    """Not an expression this reader knows."""


@lru_cache(maxsize=8192)
def read(text: str) -> Tree:
    """The tree of a cleaned expression; raises `Unread` or `TooBig`."""
    reader = _Reader(text)
    try:
        tree = reader.sum()
    except RecursionError as error:
        raise TooBig("nesting") from error
    reader.blank()
    if reader.at < len(text):
        raise Unread(f"left over at {reader.at}")
    return tree


class _Reader:
    """Recursive descent over the text; `at` is the place reached."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def blank(self) -> None:
        while self.text.startswith(" ", self.at):
            self.at += 1

    def take(self, token: str) -> bool:
        self.blank()
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self.blank()
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def sum(self) -> Tree:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise TooBig("nesting")
        left = self.product()
        while True:
            if self.take("+"):
                left = ("add", left, self.product())
            elif self.take("-"):
                left = ("add", left, ("neg", self.product()))
            else:
                self.depth -= 1
                return left

    def product(self, *, bare: bool = False) -> Tree:
        """Factors, written side by side or with an operator; `bare` ends at the first operator."""
        if self.take("-"):
            return ("neg", self.product(bare=bare))
        if self.take("+"):
            return self.product(bare=bare)
        left = self.factor()
        while True:
            self.blank()
            if not bare and self.take("*"):
                left = ("mul", left, self.signed())
            elif not bare and self.take("/"):
                left = ("div", left, self.signed())
            elif STOP.match(self.text, self.at) or (bare and self.function_next()):
                return left
            elif self.text[self.at].isdigit() and self.text[: self.at].rstrip()[-1:].isdigit():
                raise Unread("two numbers side by side")
            else:
                left = ("mul", left, self.factor())

    def function_next(self) -> bool:
        return bool(FUNCTION.match(self.text, self.at))

    def signed(self) -> Tree:
        if self.take("-"):
            return ("neg", self.signed())
        return self.signed() if self.take("+") else self.factor()

    def factor(self) -> Tree:
        value = self.primary()
        while True:
            self.blank()
            if self.text.startswith("!!", self.at):
                raise Unread("double factorial")
            if self.take("!"):
                value = ("fn", "factorial", value)
            elif self.take("^\\circ"):
                value = ("deg", value)
            elif self.take("^"):
                value = ("pow", value, self.exponent())
            elif self.take("%"):
                value = ("pct", value)
            else:
                return value

    def exponent(self) -> Tree:
        self.blank()
        if self.take("-"):
            return ("neg", self.exponent())
        if self.text[self.at : self.at + 1].isdigit():
            return ("num", self.number()[0])
        return self.argument()

    def argument(self) -> Tree:
        """What a LaTeX command takes: a group in braces, one digit, or one command."""
        self.blank()
        if self.take("{"):
            value = self.sum()
            if not self.take("}"):
                raise Unread("brace")
            return value
        if self.text[self.at : self.at + 1].isdigit():
            self.at += 1
            return ("num", int(self.text[self.at - 1]))
        return self.primary()

    def number(self) -> tuple[Any, bool]:
        found = read_number(self.text, self.at)
        if found is None:
            raise Unread("number")
        value, self.at, plain = found
        return value, plain

    def primary(self) -> Tree:
        self.blank()
        rest = self.text[self.at : self.at + 1]
        based = BASED.match(self.text, self.at)
        if based:
            return self.based(based.group(1))
        if rest.isdigit() or rest == ".":
            value, plain = self.number()
            return self.mixed(value) if plain else ("num", value)
        for opening, closing in FENCES.items():
            if self.take(opening):
                return self.fenced(opening, closing)
        if self.take("\\frac"):
            return ("div", self.argument(), self.argument())
        if self.take("\\binom"):
            return ("fn", "binomial", self.argument(), self.argument())
        if self.take("\\sqrt"):
            return self.root()
        if self.take("\\pi"):
            return ("const", "pi")
        if self.take("\\infty"):
            return ("const", "inf")
        word = self.match(WORD_CONSTANT)
        if word:
            return self.named(word.group(1))
        function = self.match(FUNCTION)
        if function:
            return self.applied(function.group(1) or function.group(2))
        return self.name()

    def named(self, word: str) -> Tree:
        if word == "sqrt":
            if not self.text.startswith("(", self.at):
                raise Unread("sqrt")
            return self.root()
        return ("const", "pi" if word == "pi" else "inf")

    def root(self) -> Tree:
        index: Tree = ("num", 2)
        if self.take("["):
            index = self.sum()
            if not self.take("]"):
                raise Unread("root")
        self.blank()
        if self.text[self.at : self.at + 1].isdigit() and self.text[self.at - 1] == " ":
            # The sign √ came without braces: all digits that follow are meant.
            return ("pow", ("num", self.number()[0]), ("div", ("num", 1), index))
        base = self.argument()
        if index[0] == "num" and index[1] % 2 == 1 and base[0] == "neg":
            return ("neg", ("pow", base[1], ("div", ("num", 1), index)))  # the real root
        return ("pow", base, ("div", ("num", 1), index))

    def fenced(self, opening: str, closing: str) -> Tree:
        value = self.sum()
        if not self.take(closing):
            raise Unread(f"no {closing}")
        kind = {"\\lfloor": "floor", "\\lceil": "ceiling", "|": "abs"}.get(opening)
        return ("fn", kind, value) if kind else value

    def mixed(self, whole: Any) -> Tree:
        r"""`3\frac{1}{2}` and `3 1/2` are three and a half; other products are products."""
        start = self.at
        found = re.compile(
            r"\s?\\frac\s?(?:\{\s?(\d+)\s?\}|(\d))\s?(?:\{\s?(\d+)\s?\}|(\d))|\s(\d+)\s?/\s?(\d+)(?!\d)"
        ).match(self.text, start)
        if found:
            top, low = [int(group[:4000]) for group in found.groups() if group]
            if top < low:
                self.at = found.end()
                if self.text[self.at : self.at + 1].isdigit():
                    raise Unread("digits after a mixed number")
                return ("add", ("num", whole), ("div", ("num", top), ("num", low)))
        return ("num", whole)

    def based(self, digits: str) -> Tree:
        start = self.at
        self.at += len(digits)
        found = BASE.match(self.text, self.at)
        base = 0
        if found:
            self.at = found.end()
            number = found.group(1) or found.group(2)
            base = int(number[:4]) if number else BASES.get(found.group(3), 0)
        if not 2 <= base <= 36:
            self.at = start
            raise Unread("subscript of a number")
        return ("based", digits, base)

    def applied(self, name: str) -> Tree:
        extra: tuple[Tree, ...] = ()
        power: Tree | None = None
        for _ in range(2):
            if name == "log" and self.take("_"):
                extra = (self.argument(),)
            elif self.take("^"):
                power = self.exponent()
        if name in ("gcd", "lcm", "max", "min"):
            raise Unread(name)
        self.blank()
        group = self.text[self.at : self.at + 1] in ("(", "{", "[", "|")
        value = self.primary() if group else self.product(bare=True)
        if power == ("neg", ("num", 1)) and name in ("sin", "cos", "tan"):
            return ("fn", "arc" + name, value)
        node: Tree = ("fn", name, value, *extra)
        return ("pow", node, power) if power else node

    def name(self) -> Tree:
        accent = self.match(ACCENT)
        if accent:
            inner = self.argument()
            if inner[0] != "var":
                raise Unread("accent")
            return self.indexed(accent.group(1) + inner[1])
        found = self.match(NAME)
        if not found:
            raise Unread(f"unknown at {self.at}: {self.text[self.at : self.at + 12]!r}")
        name = next(group for group in found.groups() if group)
        if (
            name in ("e", "i")
            and (found.group(2) or found.group(3))
            and self.text[self.at : self.at + 1] != "_"
        ):
            return ("const", name)
        return self.indexed(name)

    def indexed(self, name: str) -> Tree:
        """A name with its subscript and its primes."""
        below = SUBSCRIPT.match(self.text, self.at)
        if below:
            self.at = below.end()
            label = next(group for group in below.groups() if group)
            name += "_" + label.replace(" ", "")
        while self.take("'"):
            name += "'"
        called = CALL.match(self.text, self.at) if name[0] not in CALLED else None
        called = called or (CALL_ANY.match(self.text, self.at) if name[0] in CALLED else None)
        if called:  # f(x) and I(0) are values with a name, not products
            self.at = called.end()
            name += called.group().replace(" ", "")
        return ("var", name)


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
