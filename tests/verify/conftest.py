"""A machine with more work than it can do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def _burning(count: int) -> Iterator[None]:
    # In sessions of their own: some kernels share out processors by session first.
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.fixture
def one_busy_core() -> Iterator[None]:
    """This process and those it starts have one core, with four others that never rest."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with _burning(4):
            yield
    finally:
        os.sched_setaffinity(0, cores)


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Every core has four others that never rest."""
    with _burning(4 * len(os.sched_getaffinity(0))):
        yield
