"""A private view of the machine for one program: own processes, users, mounts and memory files."""

from __future__ import annotations

import os
import re
from typing import Any

from dare_sandbox.inside import kernel, processes
from dare_sandbox.inside.kernel import (
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    clone,
    mount,
    prctl,
    set_capabilities,
)

_NEW_MOUNTS, _NEW_USER, _NEW_PROCESSES = 0x00020000, 0x10000000, 0x20000000
_NO_SETUID, _NO_DEVICES, _NO_EXECUTION = 2, 4, 8
_READ_ONLY, _REMOUNT, _BIND = 1, 32, 4096
_KERNEL = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


class NamespaceRoom:
    """New namespaces inside those of bubblewrap, whose files are read-only."""

    written_is_memory = True

    def __init__(self, config: dict[str, Any]) -> None:
        self._arch: str = config["arch"]
        # An environment that lies in /tmp, as those of build servers do, must not vanish with it.
        self._kept = [
            path for path in config["readable"] if path.startswith(("/tmp/", "/dev/shm/"))
        ]
        self._filters = [
            kernel.assemble(self._arch, shared_memory=shared) for shared in (False, True)
        ]

    def fork(self) -> int:
        """Fork into new namespaces, whose first process the child is."""
        uid, gid = os.getuid(), os.getgid()
        # No new IPC namespace, the dearest of all: seccomp refuses every call that needs one.
        pid = clone(self._arch, _NEW_USER | _NEW_MOUNTS | _NEW_PROCESSES)
        if pid == 0:
            self._owner = (uid, gid)
        return pid

    def settle(self, limits: dict[str, Any]) -> None:
        """Fresh, sized places to write, and a /proc that shows this world alone."""
        uid, gid = self._owner
        prctl(PR_SET_DUMPABLE, 1)  # or its own maps are not its to write
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(descriptor, text.encode())
            os.close(descriptor)
        prctl(PR_SET_DUMPABLE, 0)
        flags = _NO_SETUID | _NO_DEVICES
        options = f"size={limits['file_mb']}m,nr_inodes=16384,mode=700"
        kept = [(path, os.open(path, os.O_PATH)) for path in self._kept]
        mount("tmpfs", "/tmp", "tmpfs", flags, options)
        mount("tmpfs", "/dev/shm", "tmpfs", flags | _NO_EXECUTION, options)
        for path, descriptor in kept:
            _show_again(path, descriptor)
        try:  # processes only, nothing of the machine
            mount("proc", "/proc", "proc", flags | _NO_EXECUTION, "subset=pid")
        except OSError:  # before Linux 5.8
            mount("proc", "/proc", "proc", flags | _NO_EXECUTION)
        if _KERNEL < (5, 14):  # it counts the processes of a user in all namespaces together
            limits["processes_of_user"] = 4096

    def confine(self, limits: dict[str, Any]) -> None:
        """No privilege even in this small world, and few system calls."""
        os.chdir("/tmp")
        flags = _NO_SETUID | _NO_DEVICES | _NO_EXECUTION
        # Or it could take back that it is the first to go when memory runs out.
        mount("none", "/proc", None, flags | _READ_ONLY | _REMOUNT | _BIND)
        set_capabilities(self._arch, 0)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        kernel.install(self._filters[limits["cgroup"]])

    def members(self) -> list[int]:
        """Everyone but the supervisor, which is the first process here."""
        return processes.everyone()

    def written(self) -> int:
        """Bytes in the file systems that live in memory."""
        total = 0
        for path in ("/tmp", "/dev/shm"):
            figures = os.statvfs(path)
            total += (figures.f_blocks - figures.f_bfree) * figures.f_frsize
        return total

    def empty(self) -> None:
        """The kernel ends everyone when the first process leaves."""

    def clear(self) -> None:
        """The mounts go with the last process."""

    def recover(self, pid: int) -> None:
        """Nothing outlives a supervisor."""


def _show_again(path: str, descriptor: int) -> None:
    """Bind what was covered by a mount to its old place, read-only as it was."""
    source = f"/proc/self/fd/{descriptor}"
    if os.path.isdir(source):
        os.makedirs(path, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    mount(source, path, None, _BIND)
    os.close(descriptor)
