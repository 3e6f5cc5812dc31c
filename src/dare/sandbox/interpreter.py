"""Which files a Python program needs to see: the interpreter, its libraries, its packages."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = (
    *("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64"),
    *("/nix/store", "/gnu/store", "/etc/ld.so.cache", "/usr/share/zoneinfo"),
)


@dataclass(frozen=True)
class Interpreter:
    """An executable, what must be readable for it, and where its packages are."""

    executable: str
    readable: tuple[str, ...]
    links: tuple[tuple[str, str], ...]  # (target, link), such as usr/lib for /lib
    sites: tuple[str, ...]


def find() -> Interpreter:
    """The interpreter that runs now, without its virtual environment, user files or home."""
    given = getattr(sys, "_base_executable", None) or sys.executable
    executable = os.path.realpath(given)
    prefix = os.path.realpath(sys.base_prefix)
    sites = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    wanted = [*_SYSTEM, f"{prefix}/lib", f"{prefix}/lib64", executable, *sites]
    readable: list[str] = []
    links: list[tuple[str, str]] = []
    for path in dict.fromkeys(wanted):
        if not os.path.exists(path):
            continue
        if os.path.islink(path) and path in _SYSTEM:
            links.append((os.readlink(path), path))
        elif not any(Path(path).is_relative_to(seen) for seen in readable):
            readable.append(path)
    return Interpreter(executable, tuple(readable), tuple(links), tuple(sites))
