r"""Answers in words: names, multiple-choice letters, spelt-out numbers."""

from __future__ import annotations

import re

EMPTY = "∅"
_ALIASES = {
    EMPTY: ("\\emptyset", "\\{\\}", "emptyset", "empty set", "the empty set", "no solution",
            "no solutions", "no real solution", "no real solutions"),
    "dne": ("does not exist", "doesnt exist", "dne", "limit does not exist"),
    "infinitely many": ("infinite", "infinitely many"),
}  # fmt: skip
_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty",
)  # fmt: skip
_ALIAS = {name: key for key, names in _ALIASES.items() for name in names if len(name) > 1}


def words_of(text: str, *, meant: bool = False) -> str | None:
    r"""The words of an answer made of words alone, lower case; None where it is not.

    `\text{(A)}`, `(A)` and `A` are the letter A, whose case is kept. Without `\text{}`, short
    words and those next to digits count only where words are `meant`.
    """
    if text.strip() in ("\\emptyset", "\\{\\}", "\\{ \\}"):
        return EMPTY
    boxed = "\\text" in text or meant
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)
    if "\\" in plain or "_" in plain or "^" in plain:
        return None
    if re.match(r"\s*[-+.\d]", plain):
        return None
    letter = re.fullmatch(r"\s*[\[(]?\s*([A-Z])\s*[\])]?\s*[.:]?\s*", plain)
    if letter:
        return letter.group(1)
    runs = re.findall(r"[A-Za-z]+", plain)
    if not runs or (meant and max(map(len, runs)) < 2):
        return None
    if not boxed and max(map(len, runs)) < 4:
        return None
    if not boxed and re.search(r"[-+*/=<>()\d]", plain):
        return None
    lowered = re.sub(r"[^a-z0-9 ]", "", re.sub(r"[-,/]", " ", plain.lower()))
    lowered = " ".join(lowered.split()).removeprefix("the ")
    return _ALIAS.get(lowered, lowered)


def choice_of(text: str) -> str | None:
    r"""The letter of a multiple-choice answer like `\textbf{(B)}\ 12`; None where there is none."""
    found = re.match(
        r"\s?(?:\\text\{)?\s?(?:(?i:option|choice|answer)\s+\(?([A-J])\)?\s?\}?$|\(([A-J])\)\s?\}?"
        r"(?=[\s\d\\:.-]|$)|([A-J])[.):]\s?\}?\s?(?=[\d\\$]))",
        text,
    )
    return next((letter for letter in found.groups() if letter), None) if found else None


def number_of(word: str) -> str | None:
    """`five` as 5, `infinity` as a sign; None for other words."""
    if word == "infinity":
        return r"\infty"
    return str(_NUMBERS.index(word)) if word in _NUMBERS else None
