"""One batch of items on a pool's workers: hand out, collect, kill what is over its time."""

from __future__ import annotations

import json
import logging
import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dare.rewards.pool_link import Account, PoolBroken, PoolDown, Worker

if TYPE_CHECKING:
    from dare.rewards.pool import WorkerPool

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
