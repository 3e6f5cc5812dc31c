"""What a group of processes uses, by /proc; ending it; removing a folder however it was left."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import stat
from collections.abc import Collection, Iterable
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


STRETCH = 4
"""A wall limit is this many times longer at most for a program that waits for a processor."""


class Usage(NamedTuple):
    """Private memory in bytes, processor seconds and the number of threads."""

    memory: int
    cpu_s: float
    threads: int


def everyone() -> list[int]:
    """All processes of this process namespace but the first, which watches them."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def descendants(root: int) -> list[int]:
    """The children of a process, their children and so on."""
    found: list[int] = []
    todo = [root]
    while todo:
        for pid in children(todo.pop()):
            found.append(pid)
            todo.append(pid)
    return found


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    result: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            result += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:  # it has ended: its children have a new parent, which is asked again
        pass
    return result


def tasks_of(uid: int) -> int:
    """The number of threads that belong to a user."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    total += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue
    return total


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 65536)
    finally:
        os.close(descriptor)


def _sizes(pid: int) -> list[bytes]:
    """The sizes of a process, also after its first thread has ended: then it seems to have none."""
    fields = _read(f"/proc/{pid}/statm").split()
    if fields[0] == b"0":
        for thread in os.listdir(f"/proc/{pid}/task"):
            other = _read(f"/proc/{pid}/task/{thread}/statm").split()
            if other[0] != b"0":
                return other
    return fields


def measure(pids: Iterable[int]) -> Usage:
    """The sum over processes; pages that two of them share are counted twice."""
    memory, ticks, threads = 0, 0, 0
    for pid in pids:
        try:
            fields = _sizes(pid)
            stat = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        except OSError:  # it has just ended
            continue
        memory += (int(fields[1]) - int(fields[2])) * _PAGE
        ticks += sum(map(int, stat[11:15]))
        threads += int(stat[17])
    return Usage(memory, ticks / _TICK, threads)


def waited_s(pids: Iterable[int]) -> float:
    """The longest that one of them was ready to run without a processor: the machine's doing."""
    longest = 0
    for pid in pids:
        try:
            longest = max(longest, int(_read(f"/proc/{pid}/schedstat").split()[1]))
        except (OSError, ValueError, IndexError):  # it has ended, or the kernel does not count
            continue
    return longest / 1e9


def proportional(pids: Iterable[int]) -> int:
    """Private memory in bytes with shared pages divided among their users; slow but fair."""
    total = 0
    for pid in pids:
        try:
            rollup = _read(f"/proc/{pid}/smaps_rollup").decode()
            lines = dict(line.split(":", 1) for line in rollup.splitlines()[1:])
            total += int(lines.get("Pss_Anon", lines["Pss"]).split()[0]) * 1024
        except (OSError, KeyError, ValueError):  # it hides or has ended: count all of it
            total += measure([pid]).memory
    return total


_MOST_FILES, _DEEPEST = 16384, 100


def end_descendants(spare: Collection[int] = ()) -> None:
    """Kill all descendants but the children in `spare` and theirs, until there are no others.

    This process must be a subreaper: whoever loses its parent becomes its child and is met again.
    """
    while True:
        roots = [pid for pid in children(os.getpid()) if pid not in spare]
        if not roots:
            return
        for pid in [*roots, *(below for root in roots for below in descendants(root))]:
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
