"""Rows that were there before, remembered in 16 bytes each, whatever their text was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dare.data.normal import key_of

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
