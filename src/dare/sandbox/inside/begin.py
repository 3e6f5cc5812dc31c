"""Starting one program beside its supervisor: only its own descriptors, no privilege, no way back.

A failure to shut the program in is the sandbox's, so it is told apart from the program's own.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, NoReturn, Protocol

from dare.sandbox.inside import calls, program, rlimits

_TELL = 99  # until it is shut in, the program-to-be can say what failed


class Room(Protocol):
    """A place to run one program, used by its supervisor and, for `confine`, by the program."""

    written_is_memory: bool

    def fork(self) -> int:
        """Fork the supervisor; 0 in the child."""
        ...

    def settle(self, limits: dict[str, Any]) -> None:
        """Prepare the place."""
        ...

    def confine(self, limits: dict[str, Any]) -> None:
        """Shut this process in for good."""
        ...

    def members(self) -> list[int]:
        """The processes of the program."""
        ...

    def written(self) -> int:
        """Bytes that the program keeps in files."""
        ...

    def empty(self) -> None:
        """End every process of the program."""
        ...

    def clear(self) -> None:
        """Remove what the program wrote."""
        ...

    def recover(self, pid: int) -> None:
        """In the fork server: clear up after a supervisor that was killed."""
        ...


def begin(room: Room, files: list[int], limits: dict[str, Any]) -> int:
    """Fork the program, and return once it is shut in."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(room, files, tell, limits)
    os.close(tell)
    for descriptor in files:
        os.close(descriptor)
    complaint = os.read(told, 4096)
    os.close(told)
    if complaint:
        raise RuntimeError(complaint.decode())
    return pid


def _become(room: Room, files: list[int], tell: int, limits: dict[str, Any]) -> NoReturn:
    try:
        source = os.pread(files[0], os.fstat(files[0]).st_size, 0)
        os.dup2(tell, _TELL, inheritable=False)
        _arrange(files[1:])
        os.setsid()
        calls.prctl(calls.PR_SET_DUMPABLE, 1)
        _die_first()
        rlimits.apply(limits)
        room.confine(limits)
        program.standard_streams()
        os.close(_TELL)
    except BaseException as error:
        os.write(_TELL, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    program.run(source)


def _die_first() -> None:
    """When the machine runs out of memory, this process goes before any other (a courtesy)."""
    with contextlib.suppress(OSError):
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, b"1000")
        os.close(descriptor)


def _arrange(files: list[int]) -> None:
    """Make these descriptors 0, 1, 2 and perhaps 3, and close all others but one."""
    high = [
        os.dup2(number, _TELL + 1 + place, inheritable=False) for place, number in enumerate(files)
    ]
    for place, number in enumerate(high):
        os.dup2(number, place, inheritable=True)
    os.closerange(len(files), _TELL)
    os.closerange(_TELL + 1, 65536)
