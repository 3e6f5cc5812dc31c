"""What every sandbox does: run one Python program under limits and say how it ended."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True)
class Limits:
    """What a program may use before it is stopped.

    `wall_s` does not count what a program waits for the machine, up to
    `inside.system.STRETCH` times as long: a busy machine must not change a verdict.
    """

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_mb: int = 512
    output_bytes: int = 16 << 20
    processes: int = 64
    file_mb: int = 32


@dataclass(frozen=True)
class Job:
    """One program, run as `__main__`, with all of its standard input.

    With `channel` the program gets one end of a stream socket as file descriptor 3.
    """

    source: str
    stdin: bytes = b""
    limits: Limits = field(default_factory=Limits)
    channel: bool = False


class Ended(StrEnum):
    """How a program ended. `lost` is the sandbox's own failure: it says nothing of the program."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIME = "time_limit"
    MEMORY = "memory_limit"
    OUTPUT = "output_limit"
    LOST = "lost"


@dataclass(frozen=True)
class Execution:
    """What is known of a program that has ended. `code` is its exit status or signal number; of
    its `wall_s` the machine kept it waiting for `waited_s`, as far as its supervisor saw."""

    ended: Ended
    code: int
    stdout: bytes
    stderr: bytes
    cpu_s: float
    wall_s: float
    peak_mb: float
    detail: str = ""
    waited_s: float = 0.0


class Running(Protocol):
    """A program that has been started."""

    channel: socket.socket | None

    def wait(self) -> Execution:
        """Until it ends or a limit stops it; nothing of it is left afterwards."""
        ...

    def kill(self) -> None:
        """Stop it and all that it started, at once."""
        ...

    def waited_s(self) -> float:
        """How long the machine has kept it waiting so far."""
        ...


class Sandbox(Protocol):
    """A way to run programs. Safe to call from several threads at once."""

    name: str

    def start(self, job: Job) -> Running:
        """Start a program; the caller talks to it through `channel`, then calls `wait`."""
        ...

    def run(self, job: Job) -> Execution:
        """Start a program and wait for it."""
        ...

    def close(self) -> None:
        """Free everything; the sandbox cannot be used afterwards."""
        ...


def lost(reason: str) -> Execution:
    """The sandbox's own failure: it says nothing of the program."""
    return Execution(Ended.LOST, 0, b"", b"", 0.0, 0.0, 0.0, reason)


def out_of_memory(code: int, stderr: bytes) -> bool:
    """Whether Python ended because an allocation was refused."""
    return code == 1 and stderr.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError")


class LostRun:
    """A program that could not be started."""

    channel: socket.socket | None = None

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def kill(self) -> None:
        """There is nothing to stop."""

    def waited_s(self) -> float:
        """It never ran."""
        return 0.0

    def wait(self) -> Execution:
        """Say what went wrong."""
        return lost(self._reason)
