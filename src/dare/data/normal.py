"""Texts made comparable: what two copies of a problem share however they were typeset."""

from __future__ import annotations

import hashlib
import re
import unicodedata

# Typesetting that says nothing: sizes, spaces and fonts of TeX, and its \( \) \[ \] delimiters.
_STYLE = re.compile(
    r"\\+(?:(?:left|right|big|bigg|displaystyle|textstyle|quad|qquad|text|textbf|textit|mathrm"
    r"|mbox|operatorname)(?![a-z])|[,;!: ()\[\]])"
)
_FRACTION = re.compile(r"\\[dtc]frac")
# Signs and brackets stay, for z^4 - z^2 is not z^4 + z^2; so do points and commas between digits.
_KEPT = "+-*/=<>^!|%()[]"
_POINT = re.compile(r"(?<=\d)(?:\.|[{}$\s]*[,;][{}$\s]*)(?=\d)")
_THOUSAND = re.compile(r"\d{3}(?!\d)")
_MARKS = "\0\1\2"  # stand for point, comma and prime while the others are dropped
_DROPPED = str.maketrans(
    "", "", "".join(c for c in map(chr, range(128)) if not c.isalnum() and c not in _KEPT + _MARKS)
)
_OTHER = re.compile(r"[^\w\x00-\x7f]")
_SILENT = "PZC"  # beyond ASCII: punctuation, spaces and controls typeset, other signs mean
_POWER = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u207f]+")
_ALIKE = {
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212"), "-"),
    **dict.fromkeys(map(ord, "\u2019\u2032"), "'"),
    **dict.fromkeys(map(ord, "\u2219\u22c5"), "\u00b7"),
    **dict.fromkeys(range(0xFE00, 0xFE10), ""),  # which picture is drawn for a sign
    0x2044: "/",  # of one half in a single sign
}
# A prime after a letter that stands alone makes another function of it: f'(2) is not f(2). The
# apostrophe of "two A's" is none.
_PRIMES = re.compile(r"(?<![a-z])([a-z])('+)(?!s(?![a-z]))")
_DIAGRAM = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)
_SYNONYM = re.compile(r"\\(?:(l|g|n)eq|(?:c|l|v)?(dots)[a-z]?)(?![a-z])")
_WORD = re.compile(r"[^\W\d_]+|\d+|[+\-*/=<>^!|%]")


def simplified(text: str) -> str:
    """Lower case, one form of every character, without TeX that only styles."""
    if not text.isascii():
        text = _POWER.sub(r"^\g<0>", text).replace("\u00b4", "'")
        text = unicodedata.normalize("NFKC", text).translate(_ALIKE)
    text = text.lower()
    if "\\" in text:
        text = _FRACTION.sub(r"\\frac", _STYLE.sub("", text))
    return text


def normal_form(text: str) -> str:
    """Letters, digits, signs and brackets alone: equal for copies of one problem."""
    return squeezed(simplified(text))


def squeezed(simple: str) -> str:
    """The normal form of a simplified text."""
    if "'" in simple:
        simple = _PRIMES.sub(_prime, simple)
    bare = _POINT.sub(_point, simple).translate(_DROPPED)
    return bare if bare.isascii() else _OTHER.sub(_meant, bare)


def _prime(match: re.Match[str]) -> str:
    return match[1] + "\2" * len(match[2])


def _meant(match: re.Match[str]) -> str:
    sign = match[0]
    silent = unicodedata.category(sign)[0] in _SILENT and sign != "\u00b7"
    return "" if silent else sign


def _point(match: re.Match[str]) -> str:
    if match[0] == ".":
        return "\0"
    return "" if _THOUSAND.match(match.string, match.end()) else "\1"


def words(text: str) -> list[str]:
    """The words, numbers and signs of a text in order, for n-grams; diagrams are left out."""
    return words_of(simplified(text))


def words_of(text: str) -> list[str]:
    """The words of a simplified text."""
    if "\\" in text:
        text = _SYNONYM.sub(_synonym, text)
    if "[asy]" in text:
        text = _DIAGRAM.sub(" ", text)
    return _WORD.findall(text)


def _synonym(match: re.Match[str]) -> str:
    return f"\\{match[1]}e" if match[1] else "\\dots"


def key_of(text: str) -> int:
    """64 bits that stand for a text."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
