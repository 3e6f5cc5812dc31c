"""Memory limits kept by the kernel for a whole program, where this process may make cgroups."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import threading
from dataclasses import dataclass
from pathlib import Path

_MB = 1 << 20
_ROOM_MB = 16  # the supervisor lives in the same group, and ends programs at the exact limit


@dataclass(frozen=True)
class Parent:
    """A folder of the cgroup file system in which groups with a memory limit can be made."""

    folder: Path
    limit: str
    events: str
    swap: str  # limits memory and swap together (version 1), or swap alone (version 2)


def _candidates() -> list[Parent]:
    """This process's own group and those above it, the nearest first; version 2 before 1."""
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found: list[Parent] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, point = left.split(" ")[3:5]
        if kind == "cgroup2" and "" in own:
            path, names = own[""], ("memory.max", "memory.events", "memory.swap.max")
        elif kind == "cgroup" and "memory" in options.split(",") and "memory" in own:
            path = own["memory"]
            names = ("memory.limit_in_bytes", "memory.oom_control", "memory.memsw.limit_in_bytes")
        else:
            continue
        relative = os.path.relpath(path, root) if path.startswith(root) else "."
        here = Path(os.path.normpath(f"{point}/{relative}"))
        above = [here, *here.parents]
        folders = above[: above.index(Path(point)) + 1] if Path(point) in above else [Path(point)]
        found += [Parent(folder, *names) for folder in folders]
    return found


def find() -> Parent | None:
    """The nearest place where a group with a memory limit can really be made, if any."""
    try:
        candidates = _candidates()
    except (OSError, ValueError):
        return None
    for parent in candidates:
        trial = parent.folder / f"dare-trial-{os.getpid()}-{threading.get_ident()}"
        try:
            trial.mkdir()
        except OSError:
            continue
        try:
            (trial / parent.limit).write_text(str(64 * _MB))
            return parent
        except OSError:
            continue
        finally:
            trial.rmdir()
    return None


class Group:
    """One group, used by one program at a time."""

    def __init__(self, parent: Parent, folder: Path) -> None:
        self._parent, self._folder = parent, folder
        self._memory_mb = self._kills = 0
        folder.mkdir()

    def admit(self, pid: int, memory_mb: int) -> None:
        """Limit the group and move a process into it; its children will be born there."""
        if memory_mb != self._memory_mb:
            self._set(str((memory_mb + _ROOM_MB) * _MB))
            self._memory_mb = memory_mb
        self._kills = self._count()
        (self._folder / "cgroup.procs").write_text(str(pid))

    def _set(self, size: str) -> None:
        limit, swap = self._folder / self._parent.limit, self._folder / self._parent.swap
        if not swap.exists():
            limit.write_text(size)
        elif self._parent.swap == "memory.swap.max":
            swap.write_text("0")
            limit.write_text(size)
        else:  # version 1 limits the sum of both, which may never be below the limit of memory
            swap.write_text("-1")
            limit.write_text(size)
            swap.write_text(size)

    def overran(self) -> bool:
        """Whether the kernel has killed for memory since the last process was admitted."""
        return self._count() > self._kills

    def _count(self) -> int:
        with contextlib.suppress(OSError):  # the group goes when its fork server does
            for line in (self._folder / self._parent.events).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
        return 0

    def remove(self) -> None:
        """Remove the group; every process in it has ended."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class Groups:
    """The groups of one fork server, made as needed and used again."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._prefix = f"dare-sandbox-{os.getpid()}-{os.urandom(4).hex()}"
        self._numbers = itertools.count()
        self._free: list[Group] = []
        self._lock = threading.Lock()

    @property
    def pattern(self) -> str:
        """Which folders are ours, for whoever clears up after this process."""
        return f"{self._parent.folder}/{self._prefix}-*"

    def remove(self) -> bool:
        """Remove all groups; False while one still has a process."""
        left = glob.glob(self.pattern)
        for folder in left:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return not glob.glob(self.pattern)

    def take(self) -> Group:
        """A group that nobody uses."""
        with self._lock:
            if self._free:
                return self._free.pop()
            number = next(self._numbers)
        return Group(self._parent, self._parent.folder / f"{self._prefix}-{number}")

    def give_back(self, group: Group) -> None:
        """Let another program have it."""
        with self._lock:
            self._free.append(group)
