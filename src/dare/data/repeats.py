"""Was this problem there before? What two copies share however they were typeset, and rows
remembered in 16 bytes each, whatever their text was."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


Keys = NDArray[np.uint64]
Values = NDArray[np.int64]
_NONE = -1


class HashIndex:
    """First value of every key, for millions of keys.

    Keys lie in sorted runs, each at least twice as long as the next: a batch becomes a run of its
    own and is merged with its neighbours as they fill up, so that adding a million keys sorts
    each about twenty times and a look-up searches few runs.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Keys, Values]] = []

    def __len__(self) -> int:
        return sum(len(keys) for keys, _ in self._runs)

    def find(self, keys: Keys) -> Values:
        """The value of each key, -1 where it is not there."""
        found = np.full(len(keys), _NONE, np.int64)
        for run, values in self._runs:
            place = np.minimum(np.searchsorted(run, keys), len(run) - 1)
            hit = run[place] == keys
            found[hit] = values[place[hit]]
        return found

    def add(self, keys: Keys, values: Values) -> Values:
        """Add those that are new; the value each had before, -1 where it is new.

        A key that repeats within the batch has the value of its first place there.
        """
        found = self.find(keys)
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        earlier = first[inverse.reshape(-1)]
        repeat = (found == _NONE) & (earlier != np.arange(len(keys)))
        fresh = found[first] == _NONE
        if fresh.any():
            self._runs.append((distinct[fresh], values[first[fresh]]))
            self._merge()
        found[repeat] = values[earlier[repeat]]
        return found

    def _merge(self) -> None:
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            (low, low_values), (high, high_values) = self._runs.pop(), self._runs.pop()
            keys = np.concatenate([low, high])
            order = np.argsort(keys, kind="stable")
            values = np.concatenate([low_values, high_values])
            self._runs.append((keys[order], values[order]))


# One number holds the row and short hashes of its text and answer, which only word the report.
_BITS = 12
_MASK = (1 << _BITS) - 1


@dataclass(frozen=True)
class Repeat:
    """An earlier row with the same problem."""

    first: int
    """Its number, counted from 0 over all rows that were looked at."""
    same_text: bool
    same_answer: bool


class Repeats:
    """Remembers 16 bytes a row, never a text."""

    def __init__(self) -> None:
        self._index = HashIndex()

    def add(
        self, start: int, keys: Sequence[int], texts: Sequence[str], answers: Sequence[str | None]
    ) -> list[Repeat | None]:
        """For each row of a batch that begins at row `start`, the earlier row it repeats."""
        signs = [
            (key_of(text) & _MASK) << _BITS | (key_of(" ".join((answer or "").split())) & _MASK)
            for text, answer in zip(texts, answers, strict=True)
        ]
        rows = np.arange(start, start + len(keys), dtype=np.int64)
        values = (rows << (2 * _BITS)) | np.array(signs, np.int64)
        found = self._index.add(np.array(keys, np.uint64), values).tolist()
        return [
            None
            if value < 0
            else Repeat(
                value >> (2 * _BITS),
                not ((value ^ sign) >> _BITS) & _MASK,
                not (value ^ sign) & _MASK,
            )
            for value, sign in zip(found, signs, strict=True)
        ]
