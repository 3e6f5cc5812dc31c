"""Limits that the kernel holds each process to."""

from __future__ import annotations

import math
import resource
from typing import Any

_MB = 1 << 20
_EXTRA_ADDRESS_MB = 4096  # thread stacks and libraries reserve far more than they touch
_STACK = 1 << 30


def _lower(which: int, soft: int, hard: int | None = None) -> None:
    ceiling = resource.getrlimit(which)[1]
    hard = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(which, (soft, hard))


def apply(limits: dict[str, Any]) -> None:
    """Hold this process and its children to the limits, each on its own."""
    cpu = max(1, math.ceil(limits["cpu_s"]))
    _lower(resource.RLIMIT_CPU, cpu, cpu + 1)
    _lower(resource.RLIMIT_AS, (limits["memory_mb"] + _EXTRA_ADDRESS_MB) * _MB)
    highest = resource.getrlimit(resource.RLIMIT_STACK)[1]  # honest programs ask for all of it
    resource.setrlimit(
        resource.RLIMIT_STACK, (_STACK if highest < 0 else min(highest, _STACK), highest)
    )
    _lower(resource.RLIMIT_FSIZE, limits["file_mb"] * _MB)
    _lower(resource.RLIMIT_NPROC, limits.get("processes_of_user", limits["processes"] + 2))
    _lower(resource.RLIMIT_NOFILE, 128)
    _lower(resource.RLIMIT_MEMLOCK, _MB)
    _lower(resource.RLIMIT_SIGPENDING, 1024)
    for which in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_RTPRIO):
        _lower(which, 0)
