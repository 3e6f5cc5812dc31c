"""Starting one program beside its supervisor: only its own descriptors, no privilege, no way back.

A failure to shut the program in is the sandbox's, so it is told apart from the program's own.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import io
import linecache
import math
import os
import resource
import sys
import threading
import traceback
from types import ModuleType
from typing import Any, NoReturn, Protocol

from dare_sandbox.inside import kernel

_MB = 1 << 20
_EXTRA_ADDRESS_MB = 4096  # thread stacks and libraries reserve far more than they touch
_STACK = 1 << 30


def _lower(which: int, soft: int, hard: int | None = None) -> None:
    ceiling = resource.getrlimit(which)[1]
    hard = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(which, (soft, hard))


def apply(limits: dict[str, Any]) -> None:
    """Hold this process and its children to the limits, each on its own."""
    cpu = max(1, math.ceil(limits["cpu_s"]))
    _lower(resource.RLIMIT_CPU, cpu, cpu + 1)
    _lower(resource.RLIMIT_AS, (limits["memory_mb"] + _EXTRA_ADDRESS_MB) * _MB)
    highest = resource.getrlimit(resource.RLIMIT_STACK)[1]  # honest programs ask for all of it
    resource.setrlimit(
        resource.RLIMIT_STACK, (_STACK if highest < 0 else min(highest, _STACK), highest)
    )
    _lower(resource.RLIMIT_FSIZE, limits["file_mb"] * _MB)
    _lower(resource.RLIMIT_NPROC, limits.get("processes_of_user", limits["processes"] + 2))
    _lower(resource.RLIMIT_NOFILE, 128)
    _lower(resource.RLIMIT_MEMLOCK, _MB)
    _lower(resource.RLIMIT_SIGPENDING, 1024)
    for which in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_RTPRIO):
        _lower(which, 0)


_FILE = "main.py"


def standard_streams() -> None:
    """Text streams on descriptors 0, 1 and 2, as a new interpreter would open them."""
    for name, mode, errors in (
        ("stdin", "r", "surrogateescape"),
        ("stdout", "w", "surrogateescape"),
        ("stderr", "w", "backslashreplace"),
    ):
        number = ("stdin", "stdout", "stderr").index(name)
        binary = open(number, f"{mode}b", closefd=False)  # noqa: SIM115
        binary.raw.name = f"<{name}>"  # type: ignore[attr-defined]
        newline = "\n" if mode == "w" else None
        stream = io.TextIOWrapper(binary, "utf-8", errors, newline, name == "stderr")
        stream.mode = mode  # type: ignore[misc]  # contest programs with fast input look at it
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _show(error: BaseException) -> None:
    """Print an uncaught exception without the sandbox's own frames."""
    shown = error.__traceback__ and error.__traceback__.tb_next
    if sys.excepthook is sys.__excepthook__:
        traceback.print_exception(type(error), error, shown)
    else:
        sys.excepthook(type(error), error, shown)


def _status(error: SystemExit) -> int:
    """The exit status that `sys.exit` asked for."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _finish(status: int) -> int:
    """Join threads, run exit functions and flush, without tearing the interpreter down."""
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        try:
            step()
        except SystemExit as error:
            status = _status(error)
        except BaseException:
            pass
    status = _flush(sys.stdout, status)  # its own stream may need its globals
    sys.modules["__main__"].__dict__.clear()  # destructors of the program's own objects
    gc.collect()
    status = _flush(sys.__stdout__, status)
    _flush(sys.stderr, status)
    return status


def _flush(stream: Any, status: int) -> int:
    """The exit status after a stream has been flushed."""
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except BaseException:
        return status or 120
    return status


def run(source: bytes) -> NoReturn:
    """Be that program."""
    leave = os._exit
    module = ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __file__=_FILE)
    sys.modules["__main__"] = module
    sys.argv = [""]
    text = source.decode("utf-8", "replace")
    linecache.cache[_FILE] = (len(text), None, text.splitlines(True), _FILE)  # there is no file
    status = 0
    try:
        exec(compile(source, _FILE, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as error:
        status = _status(error)
    except BaseException as error:
        status = 1
        with contextlib.suppress(BaseException):
            _show(error)
    try:
        status = _finish(status)
    finally:
        leave(status)


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
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        _die_first()
        apply(limits)
        room.confine(limits)
        standard_streams()
        os.close(_TELL)
    except BaseException as error:
        os.write(_TELL, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    run(source)


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
