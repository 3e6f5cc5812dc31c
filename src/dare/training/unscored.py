"""Rollouts that could not be scored: a few are bad luck, many are a broken reward."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dare.errors import InvalidInput


class TooManyUnscored(InvalidInput):
    """More rollouts were unscored than the limit allows; the run was saved and stopped."""


class UnscoredWindow:
    """Share of unscored rollouts over the last `steps` steps, judged once the window is full.

    Unscored rollouts carry no gradient and no evidence, so a reward that fails on the hard ones
    would quietly bend both. `limit` = 1 never stops.
    """

    def __init__(self, limit: float, steps: int) -> None:
        self._limit, self._seen = limit, deque[tuple[int, int]](maxlen=steps)

    def observe(self, unscored: int, rollouts: int) -> None:
        """Count one step."""
        self._seen.append((unscored, rollouts))

    @property
    def share(self) -> float:
        """Unscored part of the window."""
        total = sum(rollouts for _, rollouts in self._seen)
        return sum(unscored for unscored, _ in self._seen) / total if total else 0.0

    @property
    def exceeded(self) -> bool:
        """Whether the window is full and holds more than the limit."""
        return len(self._seen) == self._seen.maxlen and self.share > self._limit

    def error(self, folder: str) -> TooManyUnscored:
        """What to tell the user."""
        fix = (
            f"{self.share:.1%} of the rollouts of the last {len(self._seen)} steps could not be "
            f"scored. The run was saved in {folder}. Look at the reward function's log, mend it "
            "and resume; a higher limit goes on as is"
        )
        return TooManyUnscored("unscored_limit", self._limit, fix)

    def state(self) -> list[list[int]]:
        """The window, JSON-able."""
        return [list(entry) for entry in self._seen]

    def load(self, state: Sequence[Sequence[int]]) -> None:
        """Continue with a saved window; one that stopped the run starts anew, or it would again."""
        self._seen.clear()
        self._seen.extend((int(unscored), int(rollouts)) for unscored, rollouts in state)
        if self.exceeded:
            self._seen.clear()
