"""The calling side's ends of the sockets to a pool's server and to its workers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class PoolDown(RuntimeError):
    """The server does not start, so nothing can be scored."""


class PoolBroken(PoolDown):
    """It never will: the server itself said what it lacks."""


class ServerGone(PoolDown):
    """The server died; another may be started."""


class Account(NamedTuple):
    """Seconds on a processor, seconds of waiting for one, and whether it wants one now."""

    cpu_s: float
    waited_s: float
    ready: bool


class Worker:
    """One worker process, reached by its socket."""

    def __init__(self, number: int, pid: int, channel: socket.socket) -> None:
        self.number, self.pid, self.items = number, pid, 0
        self._channel, self._pending = channel, b""

    def fileno(self) -> int:
        """The socket's descriptor, for polling."""
        return self._channel.fileno()

    def send(self, request: bytes) -> bool:
        """Send one line; False where the worker is gone."""
        try:
            self._channel.sendall(request + b"\n", socket.MSG_NOSIGNAL)
        except OSError:
            return False
        self.items += 1
        return True

    def receive(self) -> bytes | None:
        """A whole line; None where more is to come; empty where the worker is gone."""
        try:
            part = self._channel.recv(65536)
        except OSError:
            part = b""
        if not part:
            return b""
        self._pending += part
        if not self._pending.endswith(b"\n"):
            return None
        line, self._pending = self._pending, b""
        return line

    def account(self) -> Account:
        """How it has spent its time so far."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            cpu_s, waited_s = sum(map(int, fields[11:13])) / _TICKS, 0.0
        except OSError:  # it has ended: the socket tells
            return Account(0.0, 0.0, True)
        with contextlib.suppress(OSError, ValueError):  # not every kernel keeps these
            cpu, waited, _ = Path(f"/proc/{self.pid}/schedstat").read_text().split()
            cpu_s, waited_s = max(cpu_s, int(cpu) / 1e9), int(waited) / 1e9
        return Account(cpu_s, waited_s, fields[0] == "R")

    def close(self) -> None:
        """Let go of the socket; an idle worker then ends by itself."""
        self._channel.close()


class Server:
    """The server process and its control socket."""

    def __init__(self, module: str, memory_mb: int, start_s: float) -> None:
        self._control, low = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with low:  # 0 to 2, if the caller has closed its own, become the child's null device
            theirs = socket.socket(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
        with theirs:
            self.process = subprocess.Popen(
                # -P: a module of the working folder must not stand in for a library
                [sys.executable, "-P", "-m", module]
                + [str(word) for word in (theirs.fileno(), os.getpid(), memory_mb)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt from the keyboard is for the caller alone
                env=_environment(),
            )
        self._control.settimeout(start_s)
        try:
            first = self._control.recv(4096)
        except OSError as error:
            first = f"E{type(error).__name__}: {error}".encode()
        if first != b"R":
            self.stop()
            message = first[1:].decode(errors="replace")
            if message.startswith("ModuleNotFoundError"):
                raise PoolBroken(f"{message}; `pip install math-verify` brings all that is needed")
            raise PoolDown(f"python -m {module}: {message or 'it ended at once'}")
        self._control.settimeout(10.0)

    def fork(self) -> Worker:
        """A new worker."""
        try:
            self._control.send(b"F", socket.MSG_NOSIGNAL)
            message, fds, _, _ = socket.recv_fds(self._control, 64, 1)
            number, pid = (int(word) for word in message.split())
        except (OSError, ValueError) as error:
            self.stop()
            raise ServerGone(f"the server of the workers does not answer: {error}") from error
        return Worker(number, pid, socket.socket(fileno=fds[0]))

    def order(self, letter: str, worker: Worker) -> None:
        """Kill (K) or slow down (N) a worker; a server that is gone has taken it along."""
        with contextlib.suppress(OSError):
            self._control.send(f"{letter}{worker.number}".encode(), socket.MSG_NOSIGNAL)

    def alive(self) -> bool:
        """Is the process running?"""
        return self.process.poll() is None

    def stop(self) -> None:
        """Close the socket, on which the server ends with all its workers."""
        self._control.close()
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def abandon(self) -> None:
        """In a forked child: it is the parent's process, only our copy of the socket goes."""
        self._control.close()
        self.process.returncode = 0  # or its finaliser would warn of a process still running


def _environment() -> dict[str, str]:
    """The caller's, with this very package importable and one thread for numerics."""
    root = str(Path(__file__).resolve().parents[1])
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([root, inherited] if inherited else [root])
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **quiet, "PYTHONPATH": path}
