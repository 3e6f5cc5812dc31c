"""A pool of killable worker processes: a time limit per item, a memory limit, recycling.

    with WorkerPool("dare_verify.math.worker") as pool:
        pool.run([{"gold": "1/2", "answer": "0.5"}])

Threads cannot be killed and signals reach only the main thread, so every item runs in a process.
Those are forked from a small server process (`pool_server`), never from the caller, which may hold
a GPU and many threads. No thread and no signal handler runs here: any thread may call `run`, and a
forked child starts a pool of its own.

The limit counts an item's time on a processor or asleep, not its waiting for a processor: a busy
machine takes longer and says the same.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from dare_verify.pool_link import Account, PoolBroken, PoolDown, Server, ServerGone, Worker

logger = logging.getLogger(__name__)

SLOW_S = 0.1  # an item that takes longer no longer holds up the others: spare workers take over
LOW_S = 0.3  # and after this long it runs at lower priority, while others wait
FEW = 3  # items may use their limit up; where more are late, each has
LATE = 0.25  # of it
LONGEST = 60  # limits of time on the clock, whatever an item has had of it


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
    look: float  # when to see what it has spent
    slow: bool = False
    low: bool = False
    spent_s: float = 0.0

    def measure(self, now: float, limit_s: float) -> None:
        """Time on a processor, or asleep: waiting for a processor is the machine's doing.

        So that a busy machine gives the verdicts of an idle one.
        """
        account = self.worker.account()
        self.spent_s = account.cpu_s - self.before.cpu_s
        if not account.ready:
            asleep = now - self.started - (account.waited_s - self.before.waited_s)
            self.spent_s = max(self.spent_s, asleep)
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
            if worker.send(json.dumps(self.items[row]).encode()):
                now = time.monotonic()
                look = now + LATE * self.pool.limit_s
                self.busy[worker.fileno()] = _Task(row, worker, now, worker.account(), look)
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
        for task in self.busy.values():
            if now >= task.look:
                task.measure(now, limit)
        late = sum(task.spent_s >= LATE * limit for task in self.busy.values())
        for fd, task in list(self.busy.items()):
            age = now - task.started
            over = task.spent_s >= (limit if late <= FEW else LATE * limit)
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
