"""What a program can reach: the room that it is run in, which nobody else has.

`NamespaceRoom` inside bubblewrap; without namespaces `LandlockRoom` or, dangerously, `BareRoom`.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import io
import itertools
import os
import random
import re
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from dare_sandbox.inside import system


class Room(Protocol):
    """A place to run one program, used by its supervisor and, for `confine`, by the program."""

    written_is_memory: bool

    def fork(self) -> int:
        """Fork the supervisor; 0 in the child."""
        ...

    def settle(self, limits: dict[str, Any]) -> None:
        """Prepare the place."""
        ...

    def confine(self, limits: dict[str, Any]) -> None:
        """Shut this process in for good."""
        ...

    def members(self) -> list[int]:
        """The processes of the program."""
        ...

    def written(self) -> int:
        """Bytes that the program keeps in files."""
        ...

    def kill(self) -> None:
        """Kill every process of the program, and wait for none."""
        ...

    def empty(self) -> None:
        """End every process of the program."""
        ...

    def clear(self) -> None:
        """Remove what the program wrote."""
        ...

    def recover(self, pid: int) -> None:
        """In the fork server: clear up after a supervisor that was killed."""
        ...


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
            system.assemble(self._arch, shared_memory=shared) for shared in (False, True)
        ]

    def fork(self) -> int:
        """Fork into new namespaces, whose first process the child is."""
        uid, gid = os.getuid(), os.getgid()
        # No new IPC namespace, the dearest of all: seccomp refuses every call that needs one.
        pid = system.clone(self._arch, _NEW_USER | _NEW_MOUNTS | _NEW_PROCESSES)
        if pid == 0:
            self._owner = (uid, gid)
        return pid

    def settle(self, limits: dict[str, Any]) -> None:
        """Fresh, sized places to write, and a /proc that shows this world alone."""
        uid, gid = self._owner
        system.prctl(system.PR_SET_DUMPABLE, 1)  # or its own maps are not its to write
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(descriptor, text.encode())
            os.close(descriptor)
        system.prctl(system.PR_SET_DUMPABLE, 0)
        flags = _NO_SETUID | _NO_DEVICES
        options = f"size={limits['file_mb']}m,nr_inodes=16384,mode=700"
        kept = [(path, os.open(path, os.O_PATH)) for path in self._kept]
        system.mount("tmpfs", "/tmp", "tmpfs", flags, options)
        system.mount("tmpfs", "/dev/shm", "tmpfs", flags | _NO_EXECUTION, options)
        for path, descriptor in kept:
            _show_again(path, descriptor)
        try:  # processes only, nothing of the machine
            system.mount("proc", "/proc", "proc", flags | _NO_EXECUTION, "subset=pid")
        except OSError:  # before Linux 5.8
            system.mount("proc", "/proc", "proc", flags | _NO_EXECUTION)
        if _KERNEL < (5, 14):  # it counts the processes of a user in all namespaces together
            limits["processes_of_user"] = 4096

    def confine(self, limits: dict[str, Any]) -> None:
        """No privilege even in this small world, and few system calls."""
        os.chdir("/tmp")
        flags = _NO_SETUID | _NO_DEVICES | _NO_EXECUTION
        # Or it could take back that it is the first to go when memory runs out.
        system.mount("none", "/proc", None, flags | _READ_ONLY | _REMOUNT | _BIND)
        system.set_capabilities(self._arch, 0)
        system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
        system.install(self._filters[limits["cgroup"]])

    def members(self) -> list[int]:
        """Everyone but the supervisor, which is the first process here."""
        return system.everyone()

    def written(self) -> int:
        """Bytes in the file systems that live in memory."""
        total = 0
        for path in ("/tmp", "/dev/shm"):
            figures = os.statvfs(path)
            total += (figures.f_blocks - figures.f_bfree) * figures.f_frsize
        return total

    def kill(self) -> None:
        """All but the supervisor, in one call."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)

    def empty(self) -> None:
        """The kernel waits for everyone when the first process leaves; that may be later."""
        self.kill()

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
    system.mount(source, path, None, _BIND)
    os.close(descriptor)


_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture
_VERSION = 1
_PATH_BENEATH = 1
_QUIET = 1  # from version 7 on: no line in the kernel's audit log for each refusal

_FILE = 0b1100_0000_0000_0111  # execute, write, read, truncate, device ioctl
_READ = 0b1101  # execute, read files, read folders
_DEVICE = 0b110  # write and read a file
_SPECIAL = 1 << 6 | 1 << 9 | 1 << 11 | 1 << 15  # devices, sockets, ioctl on devices
_TCP = 0b11
_SCOPES = 0b11  # abstract sockets, signals

TRUNCATE_SINCE, SIGNALS_SINCE = 3, 6


def version() -> int:
    """The version of Landlock in this kernel; 0 where there is none."""
    try:
        return system.syscall("landlock_create_ruleset", _CREATE, None, 0, _VERSION)
    except OSError:
        return 0


def _handled(abi: int) -> int:
    """All access rights to files that this version knows."""
    bits = 13 + (abi >= 2) + (abi >= 3) + (abi >= 5)
    return (1 << bits) - 1


def restrict(
    abi: int, readable: Iterable[int], devices: Iterable[int], writable: Iterable[int]
) -> None:
    """Leave this process with these folders and files (open descriptors) and nothing else.

    It needs no-new-privileges. Rights that the version does not know must be refused by seccomp.
    """
    handled = _handled(abi)
    words = [handled, *([_TCP] if abi >= 4 else []), *([_SCOPES] if abi >= SIGNALS_SINCE else [])]
    attributes = struct.pack(f"<{len(words)}Q", *words)
    ruleset = system.syscall("landlock_create_ruleset", _CREATE, attributes, len(attributes), 0)
    try:
        for rights, descriptors in (
            (_READ, readable),
            (_DEVICE, devices),
            (handled & ~_SPECIAL & ~1, writable),
        ):
            for descriptor in descriptors:
                _allow(ruleset, descriptor, rights & handled)
        system.syscall("landlock_restrict_self", _RESTRICT, ruleset, _QUIET if abi >= 7 else 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, descriptor: int, rights: int) -> None:
    if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
        rights &= _FILE
    rule = struct.pack("<Qi", rights, descriptor)
    system.syscall("landlock_add_rule", _ADD, ruleset, _PATH_BENEATH, rule, 0)


# Stand-ins for /tmp and /dev/shm where nothing can be mounted: such paths lead to an own folder.
# A convenience for honest programs and no part of the isolation: libraries written in C and other
# processes do not go through here, and a program may undo it. It has no rights elsewhere.

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


# Locks of `multiprocessing` where /dev/shm is out of reach: a counter that forked children share.
# It takes the place of the class written in C, for the same callers, and only in programs.

_RECURSIVE = 0
_FLAGS = ("EFD_SEMAPHORE", "EFD_NONBLOCK", "EFD_CLOEXEC")


class SemLock:
    """A semaphore, or with kind 0 a lock that its owner may take again."""

    SEM_VALUE_MAX = (1 << 31) - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        self.kind, self.maxvalue = kind, maxvalue
        self.name = None if unlink else name
        self.handle = os.eventfd(value, sum(getattr(os, flag) for flag in _FLAGS))
        self._held = 0
        self._owner = 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take one; False where there is none in time."""
        if self.kind == _RECURSIVE and self._is_mine():
            self._held += 1
            return True
        end = None if timeout is None else time.monotonic() + max(timeout, 0.0)
        while True:
            try:
                os.eventfd_read(self.handle)
                break
            except BlockingIOError:
                left = None if end is None else end - time.monotonic()
                if not block or (left is not None and left <= 0):
                    return False
                select.select([self.handle], [], [], left)
        self._held += 1
        self._owner = threading.get_ident()
        return True

    def release(self) -> None:
        """Give one back."""
        if self.kind == _RECURSIVE:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._held > 1:
                self._held -= 1
                return
        self._held -= 1
        os.eventfd_write(self.handle, 1)

    def _count(self) -> int:
        return self._held

    def _is_mine(self) -> bool:
        return self._held > 0 and self._owner == threading.get_ident()

    def _is_zero(self) -> bool:
        return not select.select([self.handle], [], [], 0)[0]

    def _get_value(self) -> int:
        raise NotImplementedError

    def _after_fork(self) -> None:
        self._held = 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __del__(self) -> None:
        os.close(self.handle)


def install_locks() -> None:
    """Let `multiprocessing` use it."""
    importlib.import_module("_multiprocessing").__dict__["SemLock"] = SemLock


_DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")
_COUNT_S = 5.0
_SIZE_S = 0.1


def claim_uid() -> tuple[int, socket.socket]:
    """A user id that no other program has now; the claim lasts as long as the socket is open."""
    first, count = system.UNUSED_UIDS
    offset = random.SystemRandom().randrange(count)
    for step in range(count):
        uid = first + (offset + step) % count
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0dare-sandbox-user-{uid}")
            return uid, claim
        except OSError:
            claim.close()
    raise OSError("every user id of the sandbox is in use")


class BareRoom:
    """A folder to write to, limits, and a sure end. As root, a user of its own."""

    written_is_memory = False

    def __init__(self, config: dict[str, Any]) -> None:
        self._arch: str = config["arch"]
        self._base: str = config["scratch"]
        self._root = os.getuid() == 0
        hidden = [path for path in config["readable"] if not system.open_to_all(path)]
        # An interpreter in a closed folder: with this right Landlock still names what is readable.
        self._rights = 1 << system.CAP_DAC_READ_SEARCH if hidden else 0
        self._counted = 0.0
        self._others = 0
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)

    def fork(self) -> int:
        """Fork the supervisor."""
        now = time.monotonic()
        if not self._root and now - self._counted > _COUNT_S:
            self._counted, self._others = now, system.tasks_of(os.getuid())
        return os.fork()

    def settle(self, limits: dict[str, Any]) -> None:
        """Take a new folder, and as root a new user."""
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
        self._supervisor = os.getpid()
        self._folder = f"{self._base}/{self._supervisor}"
        os.mkdir(self._folder, 0o700)
        self._device = os.stat(self._folder).st_dev
        self._size, self._sized = 0, 0.0
        self._most = limits["file_mb"] << 21
        if self._root:
            self._uid, self._claim = claim_uid()
            os.chown(self._folder, self._uid, self._uid)
        else:  # the kernel counts all processes of a user together
            limits["processes_of_user"] = self._others + limits["processes"] + 128

    def confine(self, limits: dict[str, Any]) -> None:
        """Live in the folder, as root under the new user."""
        os.chdir(self._folder)
        for name in ("HOME", "TMPDIR", "PWD"):
            os.environ[name] = self._folder
        if self._root:
            system.prctl(system.PR_SET_KEEPCAPS, 1)
            os.setgroups([])
            os.setresgid(self._uid, self._uid, self._uid)
            os.setresuid(self._uid, self._uid, self._uid)
            system.set_capabilities(self._arch, self._rights)
            system.prctl(system.PR_SET_DUMPABLE, 1)
        system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
        # Should everyone who watches it be killed at once, then so is it.
        system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._supervisor:
            os._exit(1)

    def members(self) -> list[int]:
        """All descendants of the supervisor."""
        return system.descendants(os.getpid())

    def written(self) -> int:
        """Bytes in the folder, and in files that were removed but are still open."""
        now = time.monotonic()
        if now - self._sized > _SIZE_S:
            self._sized = now
            self._size = system.size_of(self._folder, self._most + 1)
            self._size += system.size_of_deleted(self.members(), self._device)
        return self._size

    def kill(self) -> None:
        """All descendants of the supervisor."""
        system.kill_descendants()

    def empty(self) -> None:
        """Kill all that is left."""
        system.end_descendants()

    def clear(self) -> None:
        """Remove the folder."""
        system.remove_folder(self._folder)

    def recover(self, pid: int) -> None:
        """Remove the folder of a supervisor that was killed; its orphans are gone by now."""
        system.remove_folder(f"{self._base}/{pid}")


class LandlockRoom(BareRoom):
    """The same, with every file, socket and process of others out of reach."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._abi = min(version(), config["abi"])
        if self._abi == 0:
            raise OSError("this kernel has no Landlock (5.13 or later, enabled at boot)")
        self._readable: list[str] = config["readable"]
        # Without Landlock's own guard of signals, and without a user of its own, it signals nobody.
        self._may_signal = self._abi >= SIGNALS_SINCE or self._root
        self._filters = [self._filter(shared) for shared in (False, True)]
        self._places = Places(self._readable)
        install_locks()

    def _filter(self, shared: bool, pid: int | None = None) -> bytes:
        # Landlock guards no modes and owners; a user of its own has nothing else to change.
        return system.assemble(
            self._arch,
            own_pid=pid,
            shared_memory=shared,
            ownership=self._root,
            truncate=self._root or self._abi >= TRUNCATE_SINCE,
        )

    def confine(self, limits: dict[str, Any]) -> None:
        """Landlock for files, seccomp for all that Landlock does not guard."""
        # Opened while this is still root: the interpreter may be in a closed folder.
        wanted = [[*self._readable], [*_DEVICES], [self._folder]]
        opened = [[os.open(path, os.O_PATH) for path in paths] for paths in wanted]
        super().confine(limits)
        restrict(self._abi, *opened)
        for descriptor in itertools.chain(*opened):
            os.close(descriptor)
        shared = bool(limits["cgroup"])
        system.install(
            self._filters[shared] if self._may_signal else self._filter(shared, os.getpid())
        )
        self._places.folder = self._folder
