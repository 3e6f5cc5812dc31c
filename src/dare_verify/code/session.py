"""Talking to one sandboxed process, on the judge's own clock."""

from __future__ import annotations

import base64
import contextlib
import functools
import marshal
import time
from pathlib import Path

from dare_sandbox.base import Execution, Job, Limits, Sandbox
from dare_sandbox.inside.processes import STRETCH
from dare_verify.code.verdict import REPLY_BYTES
from dare_verify.code.wire import frame

_HERE = Path(__file__).parent


class NotStarted(Exception):
    """The sandbox could not start a process to talk to."""


class HungUp(Exception):
    """The process ended, or closed its end of the line."""


class Late(Exception):
    """No message came in time."""


class TooLong(Exception):
    """The message is longer than any answer should be."""


@functools.cache
def payload(*names: str, portable: bool = False) -> str:
    """Files of this package as one program; the last of them is run, the others are imported.

    They go compiled, which saves half the time of a start; `portable`, as text for any Python.
    """
    parts = ["import binascii, marshal, sys, types\n"]
    for name in names:
        text = (_HERE / f"{name}.py").read_text(encoding="utf-8")
        code = f"compile({text!r}, {name!r}, 'exec')"
        if not portable:
            compiled = marshal.dumps(compile(text, name, "exec", optimize=2))
            # Base64 has nothing to escape, which is what takes long to read.
            code = f"marshal.loads(binascii.a2b_base64('{base64.b64encode(compiled).decode()}'))"
        if name == names[-1]:
            parts.append(f"exec({code}, {{'__name__': '__main__'}})\n")
        else:
            parts.append(
                f"module = sys.modules['dare_verify.code.{name}'] = types.ModuleType({name!r})\n"
                f"exec({code}, module.__dict__)\n"
            )
    return "".join(parts)


class Session:
    """One process that was sent `payload(...)`."""

    def __init__(self, sandbox: Sandbox, source: str, limits: Limits) -> None:
        self._running = sandbox.start(Job(source, limits=limits, channel=True))
        if self._running.channel is None:
            ended = self._running.wait()
            raise NotStarted(f"{sandbox.name} opened no channel: {ended.detail}")
        self._channel = self._running.channel
        self._longest_s = STRETCH * limits.wall_s
        self._ended: Execution | None = None

    def send(self, message: bytes, within_s: float) -> None:
        """Raises HungUp or Late where the process does not take it."""
        self._channel.settimeout(max(within_s, 0.001))
        try:
            self._channel.sendall(frame(message))
        except TimeoutError:
            raise Late from None
        except OSError:
            raise HungUp from None

    def receive(self, within_s: float, longest: int = REPLY_BYTES) -> bytes:
        """The next message; raises HungUp, Late or TooLong."""
        deadline = time.monotonic() + within_s
        size = int.from_bytes(self._exactly(4, deadline), "big")
        if size > longest:
            raise TooLong
        return self._exactly(size, deadline)

    def _exactly(self, size: int, deadline: float) -> bytes:
        parts = []
        while size:
            self._channel.settimeout(max(self._left_s(deadline), 0.001))
            try:
                part = self._channel.recv(min(size, 1 << 20))
            except TimeoutError:
                if self._left_s(deadline) > 0:
                    continue
                raise Late from None
            except OSError:
                raise HungUp from None
            if not part:
                raise HungUp
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _left_s(self, deadline: float) -> float:
        """Until the deadline, which is later for a process that had to wait for a processor."""
        left = deadline - time.monotonic()
        return left if left > 0 else left + min(self._running.waited_s(), self._longest_s)

    def end(self, *, kill: bool = True) -> Execution:
        """Stop the process, or let it end by itself, and say what became of it."""
        if self._ended is None:
            if kill:
                self._running.kill()
            self._ended = self._running.wait()
            with contextlib.suppress(OSError):
                self._channel.close()
        return self._ended

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
