"""The process behind a `WorkerPool`: imports once, then forks a worker whenever it is asked to.

It has one thread and no file but its control socket, so forking it is safe and takes milliseconds.
Protocol on the control socket, one packet a message: `F` -> fork, answered with `id pid` and the
worker's socket; `K id` -> kill; `N id` -> run at low priority. It ends with its parent, and its
workers end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Handler = Callable[[dict[str, Any]], Any]
_PR_SET_PDEATHSIG = 1


def serve(load: Callable[[], Handler]) -> None:
    """Run the server on the socket, for the parent and within the memory that argv names."""
    fd, parent, memory_mb = (int(word) for word in sys.argv[1:4])
    control = socket.socket(fileno=fd)
    try:
        with _watching(parent):
            handler = load()
    except BaseException as error:  # whatever it is, the parent must hear of it
        with contextlib.suppress(OSError):
            control.send(f"E{type(error).__name__}: {error}".encode()[:4000])
        return
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError):
        control.send(b"R")
        _Server(control, parent, memory_mb, handler).loop()


@contextlib.contextmanager
def _watching(parent: int) -> Iterator[None]:
    """Imports take a second or more: end at once if the parent is killed meanwhile."""

    def look(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(0)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


class _Server:
    """Forks, kills and reaps."""

    def __init__(self, control: socket.socket, parent: int, memory_mb: int, handler: Handler):
        self.control, self.parent, self.memory_mb = control, parent, memory_mb
        self.handler = handler
        self.children: dict[int, int] = {}
        self.count = 0

    def loop(self) -> None:
        """Until the parent is gone or lets go of the socket."""
        try:
            while os.getppid() == self.parent:
                ready, _, _ = select.select([self.control], [], [], 0.5)
                self.reap()
                if ready:
                    packet = self.control.recv(64)
                    if not packet:
                        return
                    self.obey(packet)
        finally:
            for pid in self.children.values():
                os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Only here does a pid become free, so none that is still listed can be someone else's."""
        for number, pid in list(self.children.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self.children[number]

    def obey(self, packet: bytes) -> None:
        if packet == b"F":
            self.fork()
            return
        pid = self.children.get(int(packet[1:]))
        if pid is not None and packet[:1] == b"K":
            os.kill(pid, signal.SIGKILL)
        elif pid is not None:
            os.setpriority(os.PRIO_PROCESS, pid, 15)

    def fork(self) -> None:
        ours, theirs = socket.socketpair()
        self.count += 1
        pid = os.fork()
        if pid == 0:
            try:
                self.control.close()
                ours.close()
                _limit(self.memory_mb)
                _work(theirs, self.handler)
            finally:
                os._exit(0)
        self.children[self.count] = pid
        theirs.close()
        socket.send_fds(self.control, [f"{self.count} {pid}".encode()], [ours.fileno()])
        ours.close()


def _limit(memory_mb: int) -> None:
    size = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        os._exit(0)


def _work(channel: socket.socket, handler: Handler) -> None:
    """Answer requests, one line of JSON each, until the socket closes."""
    with channel.makefile("rb") as requests:
        for line in requests:
            request = json.loads(line)
            try:
                _fault(request.pop("fault", None))
                reply = {"value": handler(request)}
            except MemoryError:
                reply = {"error": "memory"}
            except Exception as error:  # the row is unscored, the worker lives
                reply = {"error": f"{type(error).__name__}: {error}"[:500]}
            channel.sendall(json.dumps(reply).encode() + b"\n")


def _fault(kind: str | None) -> None:
    """Injected failures, for tests of what a failure does to a run."""
    if kind == "hang":
        time.sleep(3600)
    elif kind == "spin":
        while True:
            pass
    elif kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif kind == "memory":
        _ = bytearray(2**40)
