"""Programs that nobody has read: what `dare_sandbox` offers."""

from dare_sandbox import (
    Ended,
    Execution,
    Job,
    Limits,
    Running,
    Sandbox,
    close_all,
    open_sandbox,
    probe,
)

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
