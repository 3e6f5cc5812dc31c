"""What a program printed against what it should have printed."""

from __future__ import annotations

import math
import re

TOLERANCE = 1e-6
_LONGEST_FLOAT = 1000
_TOKEN = re.compile(rb"\S+")
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_WHOLE = re.compile(rb"[+-]?[0-9]+(\.0*)?")


def difference(printed: bytes, expected: bytes) -> str | None:
    """Where the two texts differ, in words; None where they agree.

    They agree when they have the same tokens, in the same order: white space around them does not
    count, case does. Integers are compared digit by digit. Only where the expected token is a
    decimal fraction may the printed one be off, by 1e-6 of the larger of itself and one.
    """
    if printed.rstrip() == expected.rstrip():
        return None
    # One token at a time: a list of all would let a program fill the judge's memory.
    wanted = _TOKEN.finditer(expected)
    count = 0
    for count, found in enumerate(_TOKEN.finditer(printed), 1):
        gold = next(wanted, None)
        if gold is None:
            return f"more than {count - 1} tokens"
        if found[0] != gold[0] and not _close(found[0], gold[0]):
            return f"token {count} differs"
    return f"only {count} tokens" if next(wanted, None) else None


def _close(token: bytes, gold: bytes) -> bool:
    if max(len(token), len(gold)) > _LONGEST_FLOAT:
        return False
    if _INTEGER.fullmatch(gold) or not _NUMBER.fullmatch(gold) or not _NUMBER.fullmatch(token):
        return False
    if _WHOLE.fullmatch(gold) and _WHOLE.fullmatch(token):
        return _whole(token) == _whole(gold)  # 1000000007.0 is not 1000000008
    value, target = float(token), float(gold)
    if math.isinf(value) or math.isinf(target):
        return False
    return abs(value - target) <= TOLERANCE * max(1.0, abs(target))


def _whole(token: bytes) -> bytes:
    """An integer that may be written with a fraction of zeros, in one form: -07.00 is -7."""
    digits = token.lstrip(b"+-").split(b".")[0].lstrip(b"0") or b"0"
    return b"-" + digits if token.startswith(b"-") and digits != b"0" else digits
