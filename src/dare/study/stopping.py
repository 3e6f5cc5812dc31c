"""Ctrl-C and SIGTERM as requests that are counted and answered in good order."""

from __future__ import annotations

import contextlib
import signal
from typing import Any


class StopRequests:
    """Inside the `with` block both signals only add to `count`."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequests:
        with contextlib.suppress(ValueError):  # outside the main thread signals are not ours
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        self.count += 1
