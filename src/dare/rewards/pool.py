"""A pool of killable worker processes: a time limit per item, a memory limit, recycling.

    with WorkerPool("dare.rewards.math.worker") as pool:
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
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Self

from dare.rewards.pool_batch import Batch, Reply
from dare.rewards.pool_link import Server, ServerGone, Worker

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
