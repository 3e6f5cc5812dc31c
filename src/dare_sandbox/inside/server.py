"""The fork server, and its two forks for each program: the supervisor and the program itself.

Never a line of a program runs in the first two. A failure to shut a program in is the
sandbox's, so it is told apart from the program's own.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import io
import json
import linecache
import math
import os
import resource
import select
import site
import socket
import struct
import sys
import threading
import time
import traceback
from types import ModuleType
from typing import Any, NoReturn

from dare_sandbox.inside import system
from dare_sandbox.inside.rooms import BareRoom, LandlockRoom, NamespaceRoom, Room

# Modules that programs often use, imported once. `threading` and `random` are safe to carry across
# a fork; nothing here starts a thread. What brings large libraries with it (`asyncio`, `hashlib`)
# would make every fork slower, for few programs.
_MODULES = """
    abc array ast base64 bisect builtins calendar cmath codecs collections
    collections.abc contextlib copy ctypes dataclasses datetime decimal enum fractions functools
    heapq inspect io itertools json math numbers operator os pprint queue random re
    pickle select signal socket statistics string struct symtable sys tempfile textwrap threading
    time traceback types typing unicodedata
"""


def preload(sites: list[str]) -> None:
    """Import the common modules and let programs find the installed packages."""
    for name in _MODULES.split():
        importlib.import_module(name)
    sys.path += sites
    site.setquit()
    site.sethelper()
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()  # the collector of a forked program leaves these pages shared


_IDLE_MS = 100
_JOB_FILES = 6  # control, source, stdin, stdout, stderr, channel
_ROOMS: dict[str, type[BareRoom] | type[NamespaceRoom]] = {
    "bwrap": NamespaceRoom,
    "landlock": LandlockRoom,
    "none": BareRoom,
}


def serve(listener: socket.socket, room: Room) -> None:
    """Fork for every message until the judge closes its end."""
    known: set[int] = set()
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    while True:
        if poller.poll(_IDLE_MS if known else None):
            message, files, _, _ = socket.recv_fds(listener, 65536, _JOB_FILES)
            if not message:
                return
            try:
                pid = room.fork()
            except OSError as error:  # no memory or no process left: that program is lost
                _complain(files[0], error)
            else:
                if pid == 0:
                    listener.close()
                    _attend(room, json.loads(message), files)
                known.add(pid)
            for descriptor in files:
                os.close(descriptor)
        _reap(room, known)


def _reap(room: Room, known: set[int]) -> None:
    """Bury supervisors that have ended; what one left behind when it was killed ends too."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in known and os.WIFSIGNALED(status):
            known.discard(pid)
            if not isinstance(room, NamespaceRoom):
                system.end_descendants(spare=known)
                room.recover(pid)
        known.discard(pid)


def _complain(control: int, error: BaseException) -> None:
    os.write(control, json.dumps({"lost": f"{type(error).__name__}: {error}"}).encode())


def _attend(room: Room, limits: dict[str, Any], files: list[int]) -> NoReturn:
    """Supervise one program from beginning to end."""
    control = socket.socket(fileno=files[0])
    try:
        room.settle(limits)
        control.send(b"hello")
        if control.recv(16) == b"go":
            watch = Watch(control, begin(room, files[1:], limits), limits, room)
            reason = watch.until_end()
            watch.finish()
            room.empty()
            control.send(watch.report(reason))
        room.clear()
    except BaseException as error:
        try:
            _complain(control.fileno(), error)
            room.empty()
            room.clear()
        finally:
            os._exit(1)
    os._exit(0)


_TELL = 99  # until it is shut in, the program-to-be can say what failed


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
        system.prctl(system.PR_SET_DUMPABLE, 1)
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


_FILE = "main.py"
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


_TICK_S = 0.01
_SLOW_TICK_S = 0.03
_LONG_S = 0.25  # a tick that took longer: this process did not run, and nobody knows who did
_TOLD_S = 0.05
_CROWD = 16  # more processes than most honest programs have
_SETTLING_S = 0.5  # in which a crowd comes to be


class Watch:
    """What the supervisor knows of the program it started.

    It may take the wall limit on a processor, asleep, and coming and going as processes, as it was
    seen at every tick. What is left of its time it waited for the machine.
    """

    def __init__(
        self, control: socket.socket, pid: int, limits: dict[str, Any], room: Room
    ) -> None:
        self.control, self.pid, self.limits, self.room = control, pid, limits, room
        self.started = time.monotonic()
        self.wall_s = self.waited_s = self.own_s = 0.0
        self.looked = self.told = self.started
        self.peak = 0
        self.gone_cpu_s = 0.0  # of orphans that ended and were reaped here
        self.cpu_s = 0.0  # of all processes that there ever were, as far as they were seen
        self.fell = False
        self.members: list[int] = []
        self.settled = self.started
        self.status: int | None = None

    def until_end(self) -> str:
        """Wait for the program to end; otherwise the name of the limit that ends it."""
        handle = os.pidfd_open(self.pid)
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.register(self.control, select.POLLIN)
        try:
            while True:
                age = self.looked - self.started
                allowed = self.limits["wall_s"]
                left = allowed + min(self.waited_s, system.STRETCH * allowed) - age
                tick = _TICK_S if age < 1 else _SLOW_TICK_S
                ready = dict(poller.poll(max(0.0, min(tick, left)) * 1000))
                if handle in ready:
                    self._reap_program()
                    return ""
                if self.control.fileno() in ready:  # "stop", or the judge is no more
                    return "stopped"
                reason = "time" if left <= 0 else self._excess()
                if reason:
                    return reason
                self._reap_orphans()
        finally:
            os.close(handle)

    def finish(self) -> None:
        """Kill the program if it still runs, and take its last figures."""
        self.wall_s = time.monotonic() - self.started
        if self.status is None:
            self.room.kill()
            self._reap_program()
        self.waited_s = max(0.0, self.wall_s - self.cpu_s - self.own_s)

    def report(self, reason: str) -> bytes:
        """What the judge is told."""
        return json.dumps(
            {
                "reason": reason,
                "status": self.status,
                "wall_s": self.wall_s,
                "waited_s": self.waited_s,
                "cpu_s": self.cpu_s,
                "peak_mb": self.peak / _MB,
            }
        ).encode()

    def _reap_program(self) -> None:
        _, self.status, used = os.wait4(self.pid, 0)
        self.cpu_s = max(self.cpu_s, used.ru_utime + used.ru_stime + self.gone_cpu_s)
        if not self.peak:  # it ended before it was looked at
            self.peak = used.ru_maxrss * 1024

    def _reap_orphans(self) -> None:
        """End the zombies that were left to this process, but not the program itself."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid == self.pid:
                return
            used = os.wait4(found.si_pid, 0)[2]
            self.gone_cpu_s += used.ru_utime + used.ru_stime

    def _excess(self) -> str:
        """The limit that all processes together are over, if any."""
        pids = self.room.members()
        use = system.measure(pids)
        calm, self.members = pids == self.members, pids
        self._count(use.cpu_s + self.gone_cpu_s)
        self._account(use.asleep or not calm)
        if use.threads > self.limits["processes"] + 1:
            return "processes"
        if self.cpu_s > self.limits["cpu_s"]:
            return "time"
        written = self.room.written()
        files = written if self.room.written_is_memory else 0
        limit = self.limits["memory_mb"] * _MB
        memory = use.memory + files
        if memory <= limit or calm or len(pids) <= _CROWD:
            self.settled = self.looked
        if memory > limit and len(pids) > 1:
            if calm or len(pids) <= _CROWD:
                memory = system.proportional(pids) + files
            # Of many that fork no answer would come, and the sum counts what they share.
            elif self.limits["cgroup"] or self.looked - self.settled < _SETTLING_S:
                memory = limit
        self.peak = max(self.peak, memory)
        if memory > limit:
            return "memory"
        return "files" if written > self.limits["file_mb"] * _MB * 2 else ""

    def _count(self, seen_s: float) -> None:
        """Processor time never falls: what a process had that nobody waited for is kept."""
        if seen_s >= self.cpu_s:
            self.cpu_s, self.fell = seen_s, False
        elif self.fell:
            self.gone_cpu_s += self.cpu_s - seen_s
            self.fell = False
        else:  # it may have ended between two looks, and its parent has its time by the next
            self.fell = True

    def _account(self, own: bool) -> None:
        """Add to its own time, and let a judge who has a clock of his own know what it waited.

        Of processes that come and go nobody knows what they did: that time is their own.
        """
        now = time.monotonic()
        self.own_s += own * min(now - self.looked, _LONG_S)
        self.looked = now
        self.waited_s = max(0.0, now - self.started - self.cpu_s - self.own_s)
        if now - self.told > _TOLD_S:
            self.told = now
            with contextlib.suppress(OSError):
                self.control.send(struct.pack("dd", now, self.waited_s), socket.MSG_DONTWAIT)


def _modest_thread_stacks() -> None:
    """The main stack may grow very large; that must not be the size of every thread's."""
    attributes = ctypes.create_string_buffer(64)
    system.LIBC.pthread_attr_init(attributes)
    system.LIBC.pthread_attr_setstacksize(attributes, ctypes.c_size_t(16 << 20))
    system.LIBC.pthread_setattr_default_np(attributes)


def main(descriptor: int, config: dict[str, Any]) -> None:
    """Serve the judge at the other end of a socket."""
    listener = socket.socket(fileno=descriptor)
    try:
        system.prctl(system.PR_SET_DUMPABLE, 0)
        _modest_thread_stacks()
        room = _ROOMS[config["mode"]](config)
        preload(config["sites"])
    except BaseException as error:
        listener.send(f"{type(error).__name__}: {error}".encode())
        return
    listener.send(b"ready")
    serve(listener, room)
