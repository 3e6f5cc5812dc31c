"""Stand-ins for /tmp and /dev/shm where nothing can be mounted: such paths lead to an own folder.

A convenience for honest programs and no part of the isolation: libraries written in C and other
processes do not go through here, and a program may undo it. It has no rights elsewhere.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
_OF_ONE_PATH = """
    access chdir chmod listdir lstat mkdir mkfifo open readlink remove rmdir scandir stat truncate
    unlink utime
"""
_OF_TWO_PATHS = "link rename replace symlink"
_ABILITIES = (
    *(os.supports_dir_fd, os.supports_effective_ids),
    *(os.supports_fd, os.supports_follow_symlinks),
)


class Places:
    """Python's functions on paths, led to `folder` once there is one; `kept` ones stay."""

    def __init__(self, kept: Sequence[str] = ()) -> None:
        self.folder, self._kept = "", tuple(kept)
        for count, names in ((1, _OF_ONE_PATH), (2, _OF_TWO_PATHS)):
            for name in names.split():
                setattr(os, name, self._led(getattr(os, name), count))
        builtins.open = io.open = self._led(io.open, 1)

    def move(self, path: Any) -> Any:
        """Where a path leads; whatever is no text path is left as it is."""
        folder = self.folder
        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not folder or not isinstance(text, str) or text.startswith(folder):
            return path
        if text.startswith(self._kept):  # packages of an environment that lies in /tmp
            return path
        for place in _PLACES:
            if text.startswith(place) and text[len(place) :][:1] in ("", "/"):
                return folder + text[len(place) :]
        return path

    def _led(self, function: Callable[..., Any], count: int) -> Callable[..., Any]:
        move = self.move

        @functools.wraps(function)
        def led(*args: Any, **options: Any) -> Any:
            return function(*map(move, args[:count]), *args[count:], **options)

        for able in _ABILITIES:
            if function in able:
                able.add(led)
        return led
