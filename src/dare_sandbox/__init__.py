"""Running programs that nobody has read, with nothing to reach and limits on everything."""

from dare_sandbox.base import Ended, Execution, Job, Limits, Running, Sandbox
from dare_sandbox.opening import close_all, open_sandbox, probe

__all__ = [
    "Ended",
    "Execution",
    "Job",
    "Limits",
    "Running",
    "Sandbox",
    "close_all",
    "open_sandbox",
    "probe",
]
