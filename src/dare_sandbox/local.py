"""Sandboxes on this machine: a warm fork server, and each program on it as the judge sees it.

The server is started when needed and after every mishap. Of a program, the judge reads no more than
the limit, keeps a clock of its own and is sure of its end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import struct
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any

from dare_sandbox.base import Ended, Execution, Job, Limits, LostRun, Running, lost, out_of_memory
from dare_sandbox.cgroups import Group, Groups
from dare_sandbox.inside.system import START_S, STRETCH
from dare_sandbox.launch import Recipe, Server

_ATTEMPTS = 3
_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the judge is short of something itself


class _NoRoom(Exception):
    """The fork server could not prepare a place for the program."""


def _file_of(data: bytes) -> int:
    """A descriptor to read `data` from, which nobody can write to."""
    try:
        writer = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(writer, view) :]
        os.fchmod(writer, 0o444)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(writer, fcntl.F_ADD_SEALS, seals)
        return os.open(f"/proc/self/fd/{writer}", os.O_RDONLY)
    finally:
        os.close(writer)


class LocalSandbox:
    """Runs programs through one fork server; safe for threads, and for processes after a fork."""

    channels = True

    def __init__(self, recipe: Recipe) -> None:
        self.name = recipe.mode
        self._recipe = recipe
        self._lock = threading.Lock()
        self._server: Server | None = None
        self._closed = False
        _ALIVE.add(self)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    def run(self, job: Job) -> Execution:
        """Start a program and wait for it."""
        return self.start(job).wait()

    def start(self, job: Job) -> Running:
        """Start a program; the caller talks to it through `channel`, then calls `wait`."""
        reason = ""
        for _ in range(_ATTEMPTS):
            server: Server | None = None
            try:
                server = self._ready()
                return self._begin(server, job)
            except (_NoRoom, RuntimeError) as error:  # no process or thread free for a moment
                reason = str(error)
                time.sleep(0.05)
            except OSError as error:
                reason = f"{type(error).__name__}: {error}"
                if error.errno not in _OURS:
                    self._discard(server)
        return LostRun(reason)

    def close(self) -> None:
        """Free everything; the sandbox cannot be used afterwards."""
        with self._lock:
            self._closed = True
            if self._server is not None:
                self._server.close()
                self._server = None

    def _ready(self) -> Server:
        with self._lock:
            if self._closed:
                raise OSError("the sandbox has been closed")
            if self._server is None:
                self._server = Server(self._recipe)
            return self._server

    def _discard(self, server: Server | None) -> None:
        """Drop a server that failed, unless another thread has done so already."""
        with self._lock:
            if server is not None and self._server is server:
                self._server = None
                server.close()

    def _begin(self, server: Server, job: Job) -> LocalRun:
        group = server.groups.take() if server.groups else None
        mine: list[int] = []
        theirs: list[int] = []
        control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel: socket.socket | None = None
        try:
            with other:
                theirs.append(_file_of(job.source.encode("utf-8", "surrogatepass")))
                theirs.append(_file_of(job.stdin))
                for _ in range(2):
                    reader, writer = os.pipe()
                    os.set_blocking(reader, False)
                    os.fchmod(writer, 0o666)  # so that another user may open /dev/stdout
                    mine.append(reader)
                    theirs.append(writer)
                if job.channel:
                    channel, end = socket.socketpair()
                    theirs.append(end.detach())
                control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                server.submit(_message(job.limits, group), [other.fileno(), *theirs])
            handle = _greet(control, job.limits, group)
        except BaseException:
            for descriptor in mine:
                os.close(descriptor)
            control.close()
            if channel is not None:
                channel.close()
            if group is not None:
                group.remove()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        ends = Ends(control, handle, mine[0], mine[1], group, server.groups)
        return LocalRun(job.limits, ends, channel)

    def _after_fork(self) -> None:
        """In a forked child: leave the parent's server alone and start an own one when needed."""
        self._lock = threading.Lock()
        if self._server is not None:
            self._server.disown()
            self._server = None


def _message(limits: Limits, group: Group | None) -> bytes:
    return json.dumps({**dataclasses.asdict(limits), "cgroup": group is not None}).encode()


def _greet(control: socket.socket, limits: Limits, group: Group | None) -> int:
    """Hear from the supervisor, take hold of it while it waits, and let it begin."""
    control.settimeout(START_S)
    message, ancillary, _, _ = control.recvmsg(4096, socket.CMSG_SPACE(12))
    if not message:
        raise ConnectionError("the fork server ended")
    if message != b"hello":
        raise _NoRoom(json.loads(message)["lost"])
    pid = struct.unpack("iii", ancillary[0][2])[0]
    handle = os.pidfd_open(pid)
    try:
        if group is not None:
            group.admit(pid, limits.memory_mb)
        control.send(b"go")
    except BaseException:
        os.close(handle)
        raise
    return handle


_ALIVE: weakref.WeakSet[LocalSandbox] = weakref.WeakSet()


def _after_fork() -> None:
    for sandbox in list(_ALIVE):
        sandbox._after_fork()


os.register_at_fork(after_in_child=_after_fork)


_REASONS = {"time": Ended.TIME, "memory": Ended.MEMORY}


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


_SMALL = 1 << 18
_SAMPLE = 1 << 16


class Output:
    """Bytes in the order they came: a few in the heap, many in pages that go back at once.

    The heap of a process with many threads would keep tens of megabytes for each flood.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._small = bytearray()
        self._large: mmap.mmap | None = None

    def __len__(self) -> int:
        return self._size

    def add(self, data: bytes) -> None:
        """Append; the caller keeps to the limit."""
        if self._large is None and self._size + len(data) > _SMALL:
            pages = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._large = mmap.mmap(-1, max(self._most, self._size + len(data)), flags=pages)
            self._large.write(self._small)
            self._small = bytearray()
        if self._large is None:
            self._small += data
        else:
            self._large.write(data)
        self._size += len(data)

    def take(self, *, sample: bool = False) -> bytes:
        """All of it, or only its beginning; there is nothing left afterwards."""
        end = min(self._size, _SAMPLE) if sample else self._size
        data = bytes(self._small[:end]) if self._large is None else self._large[:end]
        if self._large is not None:
            self._large.close()
            self._large = None
        self._small = bytearray()
        self._size = 0
        return data


# What a supervisor sends while the program runs, its report is longer: when it looked, on the clock
# of the whole machine, and what the program had waited by then. It may be stopped in between.
_CLOCK = struct.Struct("dd")
_SILENCE_S = 0.25  # the supervisor speaks five times as often
_CHUNK = 1 << 16
_GRACE_S = 2.0  # for the supervisor to answer, before the judge kills without asking
_CLEARING_S = 30.0  # for the supervisor to remove files, after its report
_LATE_S = 2.0  # for the supervisor to notice by itself that time is up, on a busy machine


@dataclass(frozen=True)
class Ends:
    """What the judge holds of a program: its supervisor, its output, its memory group."""

    control: socket.socket
    handle: int
    stdout: int
    stderr: int
    group: Group | None
    groups: Groups | None

    def close(self) -> None:
        """Let go of everything; the last process has ended."""
        self.control.close()
        for descriptor in (self.handle, self.stdout, self.stderr):
            os.close(descriptor)
        if self.group is not None and self.groups is not None:
            self.groups.give_back(self.group)


class LocalRun:
    """A started program. The supervisor keeps the limits; the judge does not rely on it."""

    def __init__(self, limits: Limits, ends: Ends, channel: socket.socket | None) -> None:
        self.channel = channel
        self._owner = os.getpid()
        self._limits, self._ends = limits, ends
        most = limits.output_bytes
        self._outputs = {ends.stdout: Output(most), ends.stderr: Output(most)}
        self._room = limits.output_bytes
        self._started = time.monotonic()
        self._deadline = self._started + START_S + (1 + STRETCH) * limits.wall_s + _LATE_S
        self._clock: tuple[float, float] = self._started, 0.0  # replaced whole by another thread
        self._asked: Ended | None = None
        self._report: dict[str, Any] | None = None
        self._result: Execution | None = None
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        if channel is not None:
            # The caller is busy with the channel; a full pipe must not stop the program.
            self._thread = threading.Thread(target=self._attend, daemon=True)
            self._thread.start()

    def kill(self) -> None:
        """Stop it and all that it started, at once."""
        self._ask(Ended.SIGNALLED)

    def waited_s(self) -> float:
        """How long the machine has kept it waiting so far.

        It does so too while it lets the supervisor say nothing.
        """
        looked, waited_s = self._clock
        return waited_s + max(0.0, time.monotonic() - looked - _SILENCE_S)

    def wait(self) -> Execution:
        """Until it ends or a limit stops it; nothing of it is left afterwards."""
        if self._thread is not None:
            self._thread.join()
        elif self._result is None:
            self._attend()
        return self._result or lost("the run was abandoned")

    def _ask(self, why: Ended) -> None:
        """Have the supervisor stop the program; after a moment's grace it is killed with it."""
        with self._lock:
            if self._asked is None and self._result is None:
                self._asked = why
                self._deadline = time.monotonic() + _GRACE_S
                with contextlib.suppress(OSError):
                    self._ends.control.send(b"stop")

    def _attend(self) -> None:
        """Read and wait until the last process is gone."""
        try:
            self._follow()
            self._take_rest()
            result = self._conclude()
        except BaseException:
            self._abandon()
            raise
        with self._lock:
            self._ends.close()
            self._result = result

    def _abandon(self) -> None:
        """Nobody will wait for this any more."""
        with self._lock:
            if self._result is None:
                self._result = lost("the run was abandoned")
                self._kill_all()
                self._ends.close()

    def __del__(self) -> None:
        if self._owner == os.getpid():  # in a forked child it is the parent's to end
            self._abandon()

    def _follow(self) -> None:
        control, handle = self._ends.control, self._ends.handle
        poller = select.poll()
        for descriptor in (handle, control.fileno(), *self._outputs):
            poller.register(descriptor, select.POLLIN)
        while True:
            # Another thread may call `kill`, which the supervisor answers by ending.
            left = max(0.0, self._deadline - time.monotonic())
            ready = dict(poller.poll(left * 1000))
            for descriptor in self._outputs:
                if descriptor in ready and not self._read(descriptor):
                    poller.unregister(descriptor)
            if control.fileno() in ready and not self._hear():
                poller.unregister(control)
            if handle in ready:
                return
            if time.monotonic() >= self._deadline:
                self._kill_all()

    def _read(self, descriptor: int) -> bool:
        """Take what is there; False when there will be no more worth reading."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        self._outputs[descriptor].add(data[: self._room])
        if len(data) > self._room:
            self._room = 0
            self._ask(Ended.OUTPUT)
            return False
        self._room -= len(data)
        return bool(data)

    def _hear(self) -> bool:
        try:
            message = self._ends.control.recv(1 << 16)
        except OSError:
            return False
        if len(message) == _CLOCK.size:
            self._clock = _CLOCK.unpack(message)
        elif message:
            self._report = json.loads(message)
            self._deadline = time.monotonic() + _CLEARING_S
        return bool(message)

    def _kill_all(self) -> None:
        """The first process of a namespace takes all others with it; the fork server the rest."""
        if self._report is None:
            self._asked = self._asked or Ended.TIME
        self._deadline = time.monotonic() + _GRACE_S
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ends.handle, signal.SIGKILL)

    def _take_rest(self) -> None:
        """What was written before the end is still in the pipes."""
        self._ends.control.setblocking(False)
        while self._report is None and self._hear():
            pass
        for descriptor, data in self._outputs.items():
            before = -1
            while before != len(data):
                before = len(data)
                self._read(descriptor)

    def _conclude(self) -> Execution:
        group = self._ends.group
        flood = self._asked is Ended.OUTPUT  # nobody reads all of that
        stdout, stderr = (output.take(sample=flood) for output in self._outputs.values())
        return conclude(
            self._report or {},
            self._asked,
            group is not None and group.overran(),
            (stdout, stderr),
            self._limits,
            time.monotonic() - self._started,
        )
