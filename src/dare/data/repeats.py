"""Rows that were there before: the same text, or the same text after normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dare.data.hash_index import HashIndex
from dare.data.normal import key_of

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
