r"""Numbers as written: 1,234.5 · .5 · 0.1\overline{6} · 0.333\ldots · 1e-3, always exact."""

from __future__ import annotations

import re
from fractions import Fraction

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
