"""Whether an engine still has the weights of before, from what it says of the same few tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_STEP = 2.0
_ALARM = 20.0


def told_once(texts: Sequence[Sequence[int]]) -> list[int]:
    """Which of the tokens after the first of each text, one text behind another, are no repeats.

    A token behind the same beginning is read alike in every text, so that it tells nothing new.
    """
    seen, kept, place = set[tuple[int, ...]](), list[int](), 0
    for text in texts:
        for end in range(2, len(text) + 1):
            beginning = tuple(text[:end])
            if beginning not in seen:
                seen.add(beginning)
                kept.append(place)
            place += 1
    return kept


class Staleness:
    """Evidence that transfers do not arrive; `add` takes note of one.

    After a transfer the engine is nearer to the policy as it is (`new`) than to that of the
    transfer before (`old`); one that did not get it is nearer to `old`. Each token tells by how
    much: c = (engine - new)^2 - (engine - old)^2. Where an update is lost in rounding, `new` and
    `old` might as well change places, so that c is as often above 0 as below, and z, the sum of c
    over the root of the sum of c^2, has E exp(2 z - 2) <= 1 whatever the sizes of c (as cosh x <=
    exp(x^2 / 2)); an update that is seen makes z smaller. The running sum of 2 z - 2, never below
    0, thus passes 20 after e^20 transfers on average where tokens err independently.

    An engine also errs by the same amount again and again, which would look like a lag to an update
    that goes on in one direction: its error two transfers ago is taken off. That of the transfer
    before would have the rounding of `old` in it, and new and old could not change places.
    """

    def __init__(self) -> None:
        self.evidence = 0.0
        """The running sum."""
        self._tokens: object = None
        self._old: NDArray[np.float64] | None = None
        self._errors: list[NDArray[np.float64]] = []

    def add(self, tokens: object, engine: NDArray[np.float64], policy: NDArray[np.float64]) -> bool:
        """Log-probs of these tokens after a transfer; whether the engine is given up. With other
        tokens than before it begins anew."""
        if tokens != self._tokens:
            self.evidence, self._tokens, self._old, self._errors = 0.0, tokens, None, []
        if self._old is not None:
            error = self._errors[-2] if len(self._errors) > 1 else 0.0
            told = engine - error
            nearer = (told - policy) ** 2 - (told - self._old) ** 2
            size = math.sqrt(float((nearer**2).sum()))
            if size:  # else the policy has not changed
                z = float(nearer.sum()) / size
                self.evidence = max(0.0, self.evidence + _STEP * z - _STEP**2 / 2)
        self._old = policy
        self._errors = [*self._errors[-1:], engine - policy]
        return self.evidence > _ALARM
