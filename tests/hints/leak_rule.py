"""A second opinion on whether a text shows an answer; shares no code with the package's guard.

Numbers are compared as exact fractions whatever their notation, everything else as a normalised
substring. Signs are ignored: `3` counts as showing `-3`.
"""

import re
import unicodedata
from fractions import Fraction
from itertools import pairwise

_COUNT = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_NAMES = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7,
    "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14,
    "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20,
    "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90, "hundred": 100, "thousand": 1000, "dozen": 12,
}  # fmt: skip
_SPECIAL = {"half": Fraction(1, 2), "quarter": Fraction(1, 4), "twice": Fraction(2)}


def _tidy(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).replace("\u2044", "/").replace("\u2212", "-")
    text = re.sub(r"\\[!,;: ]", "", text.replace("{,}", ",").replace(r"\%", "%"))
    text = re.sub(r"\\(?:left|right|displaystyle)(?![A-Za-z])", "", text)
    text = re.sub(r"\\[dtc]frac", r"\\frac", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{", text)
    text = re.sub(r"\\frac\s*(\{[^{}]*\})\s*(\d)", r"\\frac\1{\2}", text)
    return re.sub(r"\\frac\s*\{\s*-?([\d.,]+)\s*\}\s*\{\s*-?([\d.,]+)\s*\}", r" \1/\2 ", text)


def _number(text: str) -> Fraction | None:
    return Fraction(text.replace(",", "")) if len(text) < 50 else None


def _named(text: str) -> set[Fraction]:
    """Values of English number words, alone and in pairs such as `twenty-five`, `two hundred`."""
    words = re.findall(r"[a-z]+", text.lower())
    found = {_SPECIAL[w] for w in words if w in _SPECIAL}
    numeric = [_NAMES.get(w, -1) for w in words]
    found |= {Fraction(n) for n in numeric if n >= 0}
    for a, b in pairwise(numeric):
        if 20 <= a < 100 and 0 < b < 10:
            found.add(Fraction(a + b))
        elif a > 0 and b in (100, 1000):
            found.add(Fraction(a * b))
    return found


def shown_values(text: str) -> set[Fraction]:
    """Every magnitude written anywhere in `text`, digits or words."""
    text = _tidy(text)
    found = _named(text)
    for match in re.finditer(rf"({_COUNT})(\s*%)?", text):
        if (value := _number(match[1])) is not None:
            found |= {value, value / 100} if match[2] else {value}
    for digits in re.findall(r"\d+", re.sub(r"\d*\.\d+", " ", text)):
        if len(digits) < 50:
            found.add(Fraction(digits))
    for top, bottom in re.findall(rf"({_COUNT})\s*/\s*({_COUNT})", text):
        a, b = _number(top), _number(bottom)
        if a is not None and b:
            found.add(a / b)
    for whole, top, bottom in re.findall(r"(\d{1,9})\s+(\d{1,9})/(\d{1,9})", text):
        if int(bottom):
            found.add(int(whole) + Fraction(int(top), int(bottom)))
    return found


def answer_values(answer: str) -> set[Fraction]:
    """Magnitudes an answer stands for, empty unless it is one number, perhaps with a unit."""
    text = re.sub(r"\\(?:text|mbox|textrm|mathrm)\s*\{[^{}]*\}", " ", _tidy(answer))
    text = re.sub(r"^\s*[A-Za-z]\s*=", "", text)
    text = (
        re.sub(r"\^\s*\{?\\circ\}?|\\degree|\\?\$|\u00b0|[{}()\s]+", " ", text)
        .lstrip(" -+")
        .rstrip(" .")
    )
    mixed = re.fullmatch(r"(\d+)\s+(\d+)/(\d+)", text)
    if mixed and int(mixed[3]):
        return {int(mixed[1]) + Fraction(int(mixed[2]), int(mixed[3]))}
    match = re.fullmatch(rf"({_COUNT})(?:\s*/\s*-?\s*({_COUNT}))?\s*(%)?", text)
    if not match or len(text) > 50:
        return set()
    value = Fraction(match[1].replace(",", "")) / Fraction((match[2] or "1").replace(",", ""))
    return {value, value / 100} if match[3] else {value}


def _letters(text: str) -> str:
    text = re.sub(r"\\(?:text|mbox|textrm|mathrm|mathbf|quad)(?![A-Za-z])", "", _tidy(text))
    text = re.sub(r"\\(?:cdot|times)(?![A-Za-z])|\^\s*\{?\\circ\}?", "", text)
    return re.sub(r"[\s${}*]|\\[()\[\]]", "", text)


def leaks(fragment: str, answer: str) -> bool:
    """Whether `fragment` shows `answer`."""
    if r"\boxed" in fragment or "####" in fragment:
        return True
    values = answer_values(answer)
    if values & shown_values(fragment):
        return True
    needle, hay = _letters(answer).strip(".").lstrip("-"), _letters(fragment)
    if len(needle) >= 3:
        return needle in hay
    if values or not needle:
        return False
    bounded = rf"(?<![A-Za-z0-9]){re.escape(needle)}(?![A-Za-z0-9])"
    return re.search(bounded, re.sub(r"[${}]", " ", _tidy(fragment))) is not None
