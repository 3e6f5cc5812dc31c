"""How a program ended, from what its supervisor, the kernel and the judge know."""

from __future__ import annotations

import os
import signal
from typing import Any

from dare.sandbox.base import Ended, Execution, Limits

_REASONS = {"time": Ended.TIME, "memory": Ended.MEMORY}


def lost(reason: str) -> Execution:
    """The sandbox's own failure: it says nothing of the program."""
    return Execution(Ended.LOST, 0, b"", b"", 0.0, 0.0, 0.0, reason)


def out_of_memory(code: int, stderr: bytes) -> bool:
    """Whether Python ended because an allocation was refused."""
    return code == 1 and stderr.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError")


def conclude(
    report: dict[str, Any],
    asked: Ended | None,
    overran: bool,
    outputs: tuple[bytes, bytes],
    limits: Limits,
    wall_s: float,
) -> Execution:
    """The supervisor's report is empty if it was killed; `asked` is why the judge ended it."""
    reason, status = str(report.get("reason", "")), report.get("status")
    cpu_s = float(report.get("cpu_s", 0.0))
    code = 0
    if overran:
        ended, reason = Ended.MEMORY, "memory"
    elif "lost" in report or (status is None and asked is None):
        ended, reason = Ended.LOST, str(report.get("lost", "the supervisor was killed"))
    elif asked is not None and asked is not Ended.SIGNALLED:
        ended = asked
    elif reason in _REASONS:
        ended = _REASONS[reason]
    elif asked is not None:
        ended, code, reason = Ended.SIGNALLED, int(signal.SIGKILL), "killed by the caller"
    else:
        ended, code = _from_status(int(status or 0), cpu_s, outputs[1], limits)
    wall_s = float(report.get("wall_s", wall_s))
    peak_mb = float(report.get("peak_mb", 0.0))
    waited_s = min(wall_s, float(report.get("waited_s", 0.0)))
    return Execution(ended, code, *outputs, cpu_s, wall_s, peak_mb, reason, waited_s)


def _from_status(status: int, cpu_s: float, stderr: bytes, limits: Limits) -> tuple[Ended, int]:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return (Ended.MEMORY if out_of_memory(code, stderr) else Ended.EXITED), code
    overdue = cpu_s >= limits.cpu_s and -code == signal.SIGKILL
    return (Ended.TIME if overdue or -code == signal.SIGXCPU else Ended.SIGNALLED), -code
