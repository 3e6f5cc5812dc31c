"""Ending every descendant of this process, and removing a folder however it was left."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import stat
from collections.abc import Collection

from dare.sandbox.inside import usage

_MOST_FILES, _DEEPEST = 16384, 100


def end_descendants(spare: Collection[int] = ()) -> None:
    """Kill all descendants but the children in `spare` and theirs, until there are no others.

    This process must be a subreaper: whoever loses its parent becomes its child and is met again.
    """
    while True:
        roots = [pid for pid in usage.children(os.getpid()) if pid not in spare]
        if not roots:
            return
        for pid in [*roots, *(below for root in roots for below in usage.descendants(root))]:
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0))  # it cannot outrun the sweep
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in roots:
            os.waitpid(pid, 0)


def remove_folder(path: str) -> None:
    """Remove a folder of any depth and any modes without following links; ends up in `/`.

    It walks step by step, since a path may be too long to be named.
    """
    try:
        os.chmod(path, 0o700)
    except FileNotFoundError:
        return
    os.chdir(path)
    way: list[str] = []
    left = [_unlink_files_here()]
    while left:
        if left[-1]:
            way.append(left[-1].pop())
            os.chmod(way[-1], 0o700)
            os.chdir(way[-1])
            left.append(_unlink_files_here())
        else:
            left.pop()
            os.chdir("..")
            if way:
                os.rmdir(way.pop())
    os.chdir("/")
    os.rmdir(path)


def _unlink_files_here() -> list[str]:
    """Remove all but the folders, whose names are returned."""
    folders: list[str] = []
    with os.scandir(".") as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name)
    return folders


def size_of(path: str, enough: int) -> int:
    """Bytes of disk below a folder; at least `enough` when it has very many files or is deep."""
    total = seen = 0
    todo = [(path, 0)]
    while todo:
        folder, depth = todo.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _MOST_FILES or depth > _DEEPEST:
                        return max(total, enough)
                    info = entry.stat(follow_symlinks=False)
                    total += info.st_blocks * 512
                    if stat.S_ISDIR(info.st_mode):
                        todo.append((entry.path, depth + 1))
        except OSError:  # it is being removed, or closed to us: then it is only as large as it was
            continue
    return total


def size_of_deleted(pids: list[int], device: int) -> int:
    """Bytes of files on `device` that have no name any more but are held open."""
    sizes: dict[int, int] = {}
    for pid in pids:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                info = os.stat(f"/proc/{pid}/fd/{name}")
                if info.st_nlink == 0 and info.st_dev == device:
                    sizes[info.st_ino] = info.st_blocks * 512
        except OSError:
            continue
    return sum(sizes.values())
