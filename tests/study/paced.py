"""A reward that takes its time, so that a run can be caught half-way."""

from __future__ import annotations

import time
import zlib
from typing import Any


def reward(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
    """Right by the luck of the text, after a pause."""
    time.sleep(0.3)
    return [float(zlib.crc32(str(text).encode()) % 2) for text in completions]


def broken(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
    """A reward with a mistake in it."""
    raise RuntimeError("the verifier is on holiday")
