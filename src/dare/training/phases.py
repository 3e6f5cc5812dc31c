"""The phases of a step: how long each took, how many tokens, and which one runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dare.errors import InvalidInput, first_line

_KNOBS = {
    "start-up": ("score_batch_tokens", "lower it"),
    "plan": ("score_batch_tokens", "lower it"),
    "generate": ("max_completion_length", "not even one response at a time fits; lower it"),
    "score": ("score_batch_tokens", "lower it"),
    "refresh": ("score_batch_tokens", "lower it"),
    "train": ("per_device_train_batch_size", "halve it, or set gradient_checkpointing: true"),
}
"""The setting that a phase's memory hangs on, and what to do about it."""


@dataclass
class Phases:
    """Seconds and tokens of each phase of a step, and the phase of `now` (the last one begun)."""

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    now: str = ""
    began: float = field(default_factory=time.perf_counter)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of this block to phase `name`."""
        start = time.perf_counter()
        self.now = name
        try:
            yield
            self.now = ""
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def rest(self, name: str) -> None:
        """Call `name` what no phase has had of the time since the step began."""
        gone = time.perf_counter() - self.began - sum(self.seconds.values())
        self.seconds[name] = self.seconds.get(name, 0.0) + max(0.0, gone)

    def count(self, name: str, tokens: int) -> None:
        """Add tokens to phase `name`."""
        self.tokens[name] = self.tokens.get(name, 0) + int(tokens)

    def out_of_memory(self, error: BaseException, args: Any, kept: str) -> InvalidInput:
        """Which phase ran out, which setting helps, and what is `kept`."""
        field, fix = _KNOBS.get(self.now, _KNOBS["train"])
        line = first_line(error).partition(". GPU")[0]
        phase = self.now or "the optimiser's step"
        fix = f"out of memory in {phase} ({line}): {fix}; `dare plan` shows what fits; {kept}"
        return InvalidInput(field, getattr(args, field), fix)
