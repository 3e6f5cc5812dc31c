"""From how a process ended to what the judge says."""

from __future__ import annotations

import signal

from dare.rewards.code.verdict import Ruling, Trial
from dare.sandbox.base import Ended, Execution

_SHOWN = 8192  # bytes of output that a verdict keeps
_LIMITS = {
    Ended.TIME: Ruling.TIME_LIMIT,
    Ended.MEMORY: Ruling.MEMORY_LIMIT,
    Ended.OUTPUT: Ruling.OUTPUT_LIMIT,
    Ended.LOST: Ruling.JUDGE_ERROR,
}


class BadTest(Exception):
    """A test that the judge cannot use: the program is not to blame."""


def died(execution: Execution) -> Trial:
    """The trial of a program that ended when it should not have, or wrongly."""
    ruling = _LIMITS.get(execution.ended, Ruling.RUNTIME_ERROR)
    if execution.ended is Ended.SIGNALLED and execution.code == signal.SIGPROF:
        ruling = Ruling.TIME_LIMIT  # the driver's own timer
    words = f"{execution.ended} ({execution.code}) {execution.detail}".strip()
    return trial(ruling, execution, words)


def trial(ruling: Ruling, execution: Execution, message: str = "") -> Trial:
    """What the judge says, with what the program left behind."""
    return Trial(
        ruling,
        message[:1000],
        execution.stdout[:_SHOWN].decode("utf-8", "replace"),
        execution.stderr[-_SHOWN:].decode("utf-8", "replace"),
        execution.cpu_s,
        execution.wall_s - execution.waited_s,
    )
