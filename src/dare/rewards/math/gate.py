"""What is too large to be worth starting on: towers, long digits, deep nesting, huge sums."""

from __future__ import annotations

import re

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
