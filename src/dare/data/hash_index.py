"""A set of 64-bit keys that remembers a number with each: 16 bytes a key, whatever its text was."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
