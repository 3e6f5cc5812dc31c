"""What an estimator costs beside the rollouts that are trained on: tokens and seconds."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Cost:
    """Tokens generated and read, seconds, and the number of estimates they were spent on.

    `once` of the tokens were spent before the first estimate, however many follow.
    """

    generated: int = 0
    scored: int = 0
    seconds: float = 0.0
    estimates: int = 0
    once: int = 0

    def start(self, generated: int, scored: int) -> None:
        """Add tokens that are spent once a run."""
        self.generated, self.scored = self.generated + generated, self.scored + scored
        self.once += generated + scored

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Add the time of this block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "seconds": round(self.seconds, 4)}


def total(costs: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of several, and the tokens that one more estimate takes."""
    names = ("generated", "scored", "seconds", "estimates", "once")
    summed: dict[str, Any] = {name: sum(cost[name] for cost in costs) for name in names}
    summed["seconds"] = round(summed["seconds"], 4)
    tokens = summed["generated"] + summed["scored"] - summed["once"]
    summed["tokens_per_estimate"] = tokens / summed["estimates"] if summed["estimates"] else 0.0
    return summed
