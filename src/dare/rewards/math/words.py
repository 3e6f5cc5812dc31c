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
_SHORT = frozenset(["no", "yes", "odd", "up", "down", "one", "two", "six", "ten"])
_FUNCTIONS = re.compile(
    "(?:arc)?(?:sin|cos|tan)|cot|sec|csc|sinh|cosh|tanh|log|exp|gcd|lcm|max|min"
)
_VARIABLES = re.compile("[a-d]+|[k-n]+|[p-t]+|[u-z]+", re.I)
# Marks that separate words, and stops, unless they belong to a number: `about -1.5` keeps both.
_MARKS = re.compile(r"-(?!\d)|(?<=\w)-|,(?!\d)|/(?!\d)")
_STOPS = re.compile(r"\.(?!\d)|[()\[\]:;!?\"`*$]")
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
    if not boxed and max(map(len, runs)) < 4 and plain.strip().lower() not in _SHORT:
        return None
    if not boxed and re.search(r"[-+*/=<>()\d]", plain):
        return None
    lowered = _MARKS.sub(" ", plain.lower().replace("'", ""))
    lowered = " ".join(_STOPS.sub("", lowered).split()).removeprefix("the ")
    return _ALIAS.get(lowered, lowered)


def is_word(text: str) -> bool:
    """Is a bare run of letters a word like `cat`, and not a product like `xyz`, `mgh` or `abc`?

    Words have vowels and consonants and no capitals inside; neighbours in the alphabet, as in
    `abc`, are variables.
    """
    word = text.lower()
    return (
        bool(re.fullmatch("[A-Za-z][a-z]{2,}", text))
        and bool(re.search("[aeiouy]", word))
        and not re.fullmatch("[aeiouy]+", word)
        and not _VARIABLES.fullmatch(word)
        and not _FUNCTIONS.fullmatch(word)
    )


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
