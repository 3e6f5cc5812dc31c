"""Which paths any user may read."""

from __future__ import annotations

import os


def open_to_all(path: str) -> bool:
    """Whether any user may read this: every folder above it lets them through."""
    if not os.stat(path).st_mode & 0o004:
        return False
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & 0o001:
            return False
    return True
