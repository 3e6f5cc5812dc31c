"""Watching one program: its end, its limits and the word of the judge."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from typing import Any

from dare_sandbox.inside.begin import Room
from dare_sandbox.inside.processes import STRETCH, measure, proportional, waited_s

_TICK_S = 0.01
_SLOW_TICK_S = 0.03
_MB = 1 << 20


class Watch:
    """What the supervisor knows of the program it started."""

    def __init__(
        self, control: socket.socket, pid: int, limits: dict[str, Any], room: Room
    ) -> None:
        self.control, self.pid, self.limits, self.room = control, pid, limits, room
        self.started = time.monotonic()
        self.wall_s = self.waited_s = 0.0
        self.peak = 0
        self.gone_cpu_s = 0.0  # of orphans that ended and were reaped here
        self.status: int | None = None
        self.program_cpu_s = 0.0

    def until_end(self) -> str:
        """Wait for the program to end; otherwise the name of the limit that ends it."""
        handle = os.pidfd_open(self.pid)
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.register(self.control, select.POLLIN)
        try:
            while True:
                age = time.monotonic() - self.started
                left = self.limits["wall_s"] - age
                if left <= 0:
                    left += min(waited_s(self.room.members()), STRETCH * self.limits["wall_s"])
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
            os.kill(self.pid, signal.SIGKILL)
            self._reap_program()

    def report(self, reason: str) -> bytes:
        """What the judge is told."""
        return json.dumps(
            {
                "reason": reason,
                "status": self.status,
                "wall_s": self.wall_s,
                "waited_s": self.waited_s,
                "cpu_s": self.program_cpu_s + self.gone_cpu_s,
                "peak_mb": self.peak / _MB,
            }
        ).encode()

    def _reap_program(self) -> None:
        self.waited_s = waited_s(self.room.members())  # it cannot be asked once it is reaped
        _, self.status, used = os.wait4(self.pid, 0)
        self.program_cpu_s = used.ru_utime + used.ru_stime
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
        use = measure(pids)
        written = self.room.written()
        files = written if self.room.written_is_memory else 0
        limit = self.limits["memory_mb"] * _MB
        memory = use.memory + files
        if memory > limit and len(pids) > 1:
            memory = proportional(pids) + files
        self.peak = max(self.peak, memory)
        if memory > limit:
            return "memory"
        if use.cpu_s + self.gone_cpu_s > self.limits["cpu_s"]:
            return "time"
        if use.threads > self.limits["processes"] + 1:
            return "processes"
        return "files" if written > self.limits["file_mb"] * _MB * 2 else ""
