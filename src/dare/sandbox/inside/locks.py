"""Locks of `multiprocessing` where /dev/shm is out of reach: a counter that forked children share.

It takes the place of the class written in C, for the same callers, and only in programs.
"""

from __future__ import annotations

import importlib
import os
import select
import threading
import time
from typing import Any

_RECURSIVE = 0
_FLAGS = ("EFD_SEMAPHORE", "EFD_NONBLOCK", "EFD_CLOEXEC")


class SemLock:
    """A semaphore, or with kind 0 a lock that its owner may take again."""

    SEM_VALUE_MAX = (1 << 31) - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        self.kind, self.maxvalue = kind, maxvalue
        self.name = None if unlink else name
        self.handle = os.eventfd(value, sum(getattr(os, flag) for flag in _FLAGS))
        self._held = 0
        self._owner = 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take one; False where there is none in time."""
        if self.kind == _RECURSIVE and self._is_mine():
            self._held += 1
            return True
        end = None if timeout is None else time.monotonic() + max(timeout, 0.0)
        while True:
            try:
                os.eventfd_read(self.handle)
                break
            except BlockingIOError:
                left = None if end is None else end - time.monotonic()
                if not block or (left is not None and left <= 0):
                    return False
                select.select([self.handle], [], [], left)
        self._held += 1
        self._owner = threading.get_ident()
        return True

    def release(self) -> None:
        """Give one back."""
        if self.kind == _RECURSIVE:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._held > 1:
                self._held -= 1
                return
        self._held -= 1
        os.eventfd_write(self.handle, 1)

    def _count(self) -> int:
        return self._held

    def _is_mine(self) -> bool:
        return self._held > 0 and self._owner == threading.get_ident()

    def _is_zero(self) -> bool:
        return not select.select([self.handle], [], [], 0)[0]

    def _get_value(self) -> int:
        raise NotImplementedError

    def _after_fork(self) -> None:
        self._held = 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __del__(self) -> None:
        os.close(self.handle)


def install() -> None:
    """Let `multiprocessing` use it."""
    importlib.import_module("_multiprocessing").__dict__["SemLock"] = SemLock
