"""The process between the judge and the fork server: it prepares, waits, and clears up.

It is alone in its process, so the kernel's rule that a child dies with its parent *thread* is
safe here, and it notices the death of the judge by the closing of a socket.
"""

from __future__ import annotations

import glob
import os
import resource
import select
from typing import Any

from dare_sandbox.inside import system

_NEW_MOUNTS = 0x00020000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_NOBODY = 65534


def stage(paths: list[str], folder: str) -> dict[str, str]:
    """Show each path under `folder`, where no closed parent hides it from an ordinary user.

    Only root needs this, and only this process and its children see it.
    """
    try:
        system.unshare(_NEW_MOUNTS)
        system.mount("none", "/", None, _RECURSIVE | _PRIVATE)
    except OSError as error:
        closed = [path for path in paths if not system.open_to_all(path)]
        raise OSError(f"{error}, and ordinary users cannot read {', '.join(closed)}") from error
    opened = [(path, os.open(path, os.O_PATH)) for path in paths]
    system.mount("tmpfs", folder, "tmpfs", 0, "size=1m,mode=755")
    staged: dict[str, str] = {}
    for place, (path, descriptor) in enumerate(opened):
        target = f"{folder}/{place}"
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        system.mount(f"/proc/self/fd/{descriptor}", target, None, _BIND | _RECURSIVE)
        os.close(descriptor)
        staged[path] = target
    return staged


def drop_root() -> None:
    """Be an ordinary user from here on: as root, the program could write host settings."""
    first, count = system.UNUSED_UIDS
    for uid in (first + os.getpid() % count, _NOBODY):
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            return
        except OSError:  # not mapped in this container's user namespace
            continue
    raise OSError("no ordinary user to become")


def _exec(config: dict[str, Any]) -> None:
    """In the child: become the command, as an ordinary user, with nothing but its descriptor."""
    command: list[str] = config["command"]
    if os.getuid() == 0 and not all(map(system.open_to_all, config["stage"])):
        where = stage(config["stage"], config["stage_at"])
        command = [
            where.get(word, word) if flag in ("--ro-bind", "--dev-bind") else word
            for flag, word in zip(["", *command], command, strict=False)
        ]
    if config["drop"] and os.getuid() == 0:
        drop_root()
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = 1 << 30 if hard == resource.RLIM_INFINITY else min(hard, 1 << 30)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))
    os.dup2(config["listener"], 3, inheritable=True)
    os.closerange(4, 65536)
    os.execve(command[0], command, config["environment"])


def main(descriptor: int, config: dict[str, Any]) -> None:
    """Start the fork server and stay until the judge leaves or the fork server ends."""
    system.prctl(system.PR_SET_DUMPABLE, 0)
    system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
    os.setsid()
    if config["scratch"]:
        os.mkdir(config["scratch"], 0o711)
    pid = os.fork()
    if pid == 0:
        try:
            _exec(config)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
        os._exit(127)
    os.close(config["listener"])
    handle = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    poller.register(descriptor, select.POLLIN)
    poller.poll()
    system.end_descendants()
    if config["scratch"]:
        system.remove_folder(config["scratch"])
    for folder in glob.glob(config["cgroups"]) if config["cgroups"] else []:
        os.rmdir(folder)
