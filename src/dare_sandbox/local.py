"""Sandboxes on this machine: a warm fork server, started when needed and after every mishap."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import socket
import struct
import tempfile
import threading
import time
import weakref

from dare_sandbox.base import Execution, Job, Limits, Running
from dare_sandbox.cgroups import Group
from dare_sandbox.launch import Recipe, Server
from dare_sandbox.running import Ends, LocalRun, LostRun

_HELLO_S = 20.0
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
    control.settimeout(_HELLO_S)
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
