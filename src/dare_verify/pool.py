"""A pool of killable worker processes: a time limit per item, a memory limit, recycling.

    with WorkerPool("dare_verify.math.worker") as pool:
        pool.run([{"gold": "1/2", "answer": "0.5"}])

Threads cannot be killed and signals reach only the main thread, so every item runs in a process.
Those are forked from a small server process (`serve`), never from the caller, which may hold
a GPU and many threads. No thread and no signal handler runs here: any thread may call `run`, and a
forked child starts a pool of its own.

The limit counts an item's time on a processor or asleep, not its waiting for a processor: a busy
machine takes longer and says the same.

The server imports once, then forks a worker whenever it is asked to. It has one thread and no file
but its control socket, so forking it is safe and takes milliseconds. Protocol on that socket, one
packet a message: `F` -> fork, answered with `id pid` and the worker's socket; `K id` -> kill;
`N id` -> run at low priority. It ends with its parent, and its workers end with it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import logging
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

logger = logging.getLogger(__name__)

_TICKS = os.sysconf("SC_CLK_TCK")


class PoolDown(RuntimeError):
    """The server does not start, so nothing can be scored."""


class PoolBroken(PoolDown):
    """It never will: the server itself said what it lacks."""


class ServerGone(PoolDown):
    """The server died; another may be started."""


def _stolen_s() -> float:
    """What a virtual machine's host has kept of its processors, of the one it kept most of."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()[1:]]
    return max((int(line[8]) for line in lines if line[0].startswith("cpu")), default=0) / _TICKS


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


SLOW_S = 0.1  # an item that takes longer no longer holds up the others: spare workers take over
LOW_S = 0.3  # and after this long it runs at lower priority, while others wait
FEW = 3  # items may use their limit up; where more are late, each has
LATE = 0.25  # of it
LONGEST = 60  # limits of time on the clock, whatever an item has had of it


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


@dataclass(frozen=True)
class Reply:
    """What became of one item. `status`: ok, timeout, crashed, memory, error, down."""

    status: str
    value: Any = None


@dataclass
class _Task:
    """An item in a worker's hands."""

    row: int
    worker: Worker
    started: float
    before: Account  # the worker's, when it got the item
    stolen_s: float  # what the machine's host had kept of its processors
    look: float  # when to see what it has spent
    slow: bool = False
    low: bool = False
    spent_s: float = 0.0

    def measure(self, now: float, stolen_s: float, limit_s: float) -> None:
        """Time on a processor, or asleep: waiting for a processor is the machine's doing.

        So that a busy machine gives the verdicts of an idle one.
        """
        account = self.worker.account()
        self.spent_s = account.cpu_s - self.before.cpu_s
        if not account.ready:
            waited = account.waited_s - self.before.waited_s + stolen_s - self.stolen_s
            self.spent_s = max(self.spent_s, now - self.started - waited)
        bound = limit_s if self.spent_s >= LATE * limit_s else LATE * limit_s
        self.look = now + max(0.01, bound - self.spent_s)


class Batch:
    """One call of `run`."""

    def __init__(self, pool: WorkerPool, items: Sequence[dict[str, Any]]) -> None:
        self.pool, self.items = pool, items
        self.waiting = deque(range(len(items)))
        self.tries = [0] * len(items)
        self.replies: list[Reply | None] = [None] * len(items)
        self.busy: dict[int, _Task] = {}
        self.stolen_s = _stolen_s()

    def run(self) -> list[Reply]:
        """Work until every item has its reply."""
        try:
            while self.waiting or self.busy:
                self.hand_out()
                self.collect()
        finally:
            for task in self.busy.values():  # only after an exception, e.g. KeyboardInterrupt
                self.pool.discard(task.worker)
        return [reply or Reply("down") for reply in self.replies]

    def hand_out(self) -> None:
        """Give waiting items to workers; slow items make room for spare workers."""
        slow = sum(task.slow for task in self.busy.values())
        room = self.pool.workers + min(2 * slow, self.pool.spare)
        while self.waiting and len(self.busy) < room:
            try:
                worker = self.pool.take(wait=not self.busy)
            except PoolBroken:
                raise
            except PoolDown as error:
                logger.error("no worker could be started: %s", error)
                while self.waiting:
                    self.settle(self.waiting.popleft(), Reply("down", str(error)))
                return
            if worker is None:
                return
            row = self.waiting.popleft()
            before = worker.account()  # while it is idle: what it waits from here on is its item's
            if worker.send(json.dumps(self.items[row]).encode()):
                now = time.monotonic()
                look = now + LATE * self.pool.limit_s
                self.busy[worker.fileno()] = _Task(row, worker, now, before, self.stolen_s, look)
            else:  # it died while idle: not this item's doing
                self.pool.discard(worker)
                self.waiting.appendleft(row)

    def collect(self) -> None:
        """Wait for replies, but no longer than until the next item is slow or over its time."""
        if not self.busy:
            return
        now = time.monotonic()
        wake = min(
            task.look
            if task.low
            else min(task.look, task.started + (LOW_S if task.slow else SLOW_S))
            for task in self.busy.values()
        )
        poll = select.poll()
        for fd in self.busy:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(max(0.0, wake - now) * 1000 + 1):
            self.receive(fd)
        now, limit = time.monotonic(), self.pool.limit_s
        due = [task for task in self.busy.values() if now >= task.look]
        if due:
            self.stolen_s = _stolen_s()
        for task in due:
            task.measure(now, self.stolen_s, limit)
        late = sum(task.spent_s >= LATE * limit for task in self.busy.values())
        for fd, task in list(self.busy.items()):
            age = now - task.started
            over = task.spent_s >= (limit if late <= FEW else LATE * limit)
            if over and _readable(fd):  # it answered while this process waited for a processor
                continue
            if over or age >= LONGEST * limit:
                del self.busy[fd]
                self.pool.discard(task.worker)
                self.settle(task.row, Reply("timeout"))
            elif age >= LOW_S and not task.low:
                task.slow = task.low = True
                if self.waiting:
                    self.pool.soothe(task.worker)
            elif age >= SLOW_S and not task.slow:
                task.slow = True

    def receive(self, fd: int) -> None:
        """Take one worker's reply, or notice that it died."""
        task = self.busy[fd]
        line = task.worker.receive()
        if line is None:
            return
        del self.busy[fd]
        if line == b"":
            self.pool.discard(task.worker)
            self.tries[task.row] += 1
            if self.tries[task.row] > 1:
                self.settle(task.row, Reply("crashed"))
            else:  # perhaps it was killed from outside: once more, with another worker
                self.waiting.append(task.row)
            return
        reply = json.loads(line)
        fault = reply.get("error")
        self.pool.put(task.worker, fit=not task.low and fault != "memory")
        if fault is None:
            self.settle(task.row, Reply("ok", reply["value"]))
        else:
            self.settle(task.row, Reply("memory" if fault == "memory" else "error", fault))

    def settle(self, row: int, reply: Reply) -> None:
        """The final word on an item."""
        self.replies[row] = reply
        self.pool.note(reply.status)


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


class WorkerPool:
    """Workers for one handler module; starts with the first item and ends with the process."""

    def __init__(
        self,
        module: str,
        *,
        workers: int | None = None,
        limit_s: float = 2.0,
        memory_mb: int = 1024,
        recycle: int = 500,
        spare: int = 48,
        start_s: float = 120.0,
    ) -> None:
        self.workers = workers or max(1, min(8, len(os.sched_getaffinity(0))))
        self.limit_s, self.recycle, self.spare = limit_s, recycle, spare
        self.counts = dict.fromkeys(("items", "timeout", "crashed", "memory", "error", "down"), 0)
        self.counts |= {"forked": 0, "restarts": 0}
        self._module, self._memory_mb, self._start_s = module, memory_mb, start_s
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[Worker] = []
        self._live: set[Worker] = set()
        self._server: Server | None = None
        self._pid = os.getpid()

    def run(self, items: Sequence[dict[str, Any]]) -> list[Reply]:
        """One reply an item, in order. Only a missing library raises; all else is a status."""
        if self._pid != os.getpid():
            self._forget()
        return Batch(self, items).run() if items else []

    def pids(self) -> list[int]:
        """The processes of this pool, the server first."""
        with self._changed:
            server = [self._server.process.pid] if self._server else []
            return server + [worker.pid for worker in self._live]

    def close(self) -> None:
        """End all processes; the next `run` starts new ones."""
        if self._pid != os.getpid():
            self._forget()
            return
        with self._changed:
            for worker in self._live:
                worker.close()
            self._live.clear()
            self._idle.clear()
            if self._server:
                self._server.stop()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_server", None) is not None:
            self.close()

    def _forget(self) -> None:
        """In a forked child: the processes are the parent's; let go of them."""
        for worker in self._live:
            worker.close()
        if self._server:
            self._server.abandon()
        self._reset()

    def take(self, *, wait: bool) -> Worker | None:
        """A worker, idle or new; None where all are taken and the caller has some already."""
        with self._changed:
            while True:
                if self._idle:
                    return self._idle.pop()
                if len(self._live) < self.workers + self.spare:
                    return self._fork()
                if not wait:
                    return None
                self._changed.wait(0.1)

    def _fork(self) -> Worker:
        for left in (2, 1, 0):
            try:
                worker = self._start().fork()
                break
            except ServerGone:  # killed from outside: its workers went with it
                self._server = None
                self.counts["restarts"] += 1
                if not left:
                    raise
        self._live.add(worker)
        self.counts["forked"] += 1
        return worker

    def _start(self) -> Server:
        if self._server is not None and not self._server.alive():
            self.counts["restarts"] += 1
            self._server.stop()
            self._server = None
        if self._server is None:
            self._server = Server(self._module, self._memory_mb, self._start_s)
        return self._server

    def put(self, worker: Worker, *, fit: bool) -> None:
        """Give a worker back; one that is not fit, or old, is ended."""
        with self._changed:
            if worker in self._live:
                if fit and worker.items < self.recycle:
                    self._idle.append(worker)
                else:
                    self.discard(worker)
            self._changed.notify()

    def discard(self, worker: Worker) -> None:
        """Kill a worker."""
        with self._changed:
            self._live.discard(worker)
            if self._server is not None:
                self._server.order("K", worker)
            worker.close()
            self._changed.notify()

    def note(self, status: str) -> None:
        """Count a settled item."""
        with self._changed:
            self.counts["items"] += 1
            if status != "ok":
                self.counts[status] += 1

    def soothe(self, worker: Worker) -> None:
        """Let a slow worker run on at low priority."""
        with self._changed:
            if self._server is not None:
                self._server.order("N", worker)


def _after_fork() -> None:
    for pool in list(_pools):
        pool._forget()


def _at_exit() -> None:
    for pool in list(_pools):
        pool.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


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
        _Forker(control, parent, memory_mb, handler).loop()


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


class _Forker:
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
