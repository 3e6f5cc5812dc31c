"""Rooms without namespaces: Landlock, or (dangerously) nothing but limits."""

from __future__ import annotations

import builtins
import functools
import importlib
import io
import itertools
import os
import random
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dare_sandbox.inside import kernel, processes
from dare_sandbox.inside.kernel import open_to_all, syscall

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
        return syscall("landlock_create_ruleset", _CREATE, None, 0, _VERSION)
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
    ruleset = syscall("landlock_create_ruleset", _CREATE, attributes, len(attributes), 0)
    try:
        for rights, descriptors in (
            (_READ, readable),
            (_DEVICE, devices),
            (handled & ~_SPECIAL & ~1, writable),
        ):
            for descriptor in descriptors:
                _allow(ruleset, descriptor, rights & handled)
        syscall("landlock_restrict_self", _RESTRICT, ruleset, _QUIET if abi >= 7 else 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, descriptor: int, rights: int) -> None:
    if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
        rights &= _FILE
    rule = struct.pack("<Qi", rights, descriptor)
    syscall("landlock_add_rule", _ADD, ruleset, _PATH_BENEATH, rule, 0)


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
_FIRST_UID, _UIDS = 60578, 606  # a range that no distribution assigns
_COUNT_S = 5.0
_SIZE_S = 0.1


def claim_uid() -> tuple[int, socket.socket]:
    """A user id that no other program has now; the claim lasts as long as the socket is open."""
    offset = random.SystemRandom().randrange(_UIDS)
    for step in range(_UIDS):
        uid = _FIRST_UID + (offset + step) % _UIDS
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
        hidden = [path for path in config["readable"] if not open_to_all(path)]
        # An interpreter in a closed folder: with this right Landlock still names what is readable.
        self._rights = 1 << kernel.CAP_DAC_READ_SEARCH if hidden else 0
        self._counted = 0.0
        self._others = 0
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)

    def fork(self) -> int:
        """Fork the supervisor."""
        now = time.monotonic()
        if not self._root and now - self._counted > _COUNT_S:
            self._counted, self._others = now, processes.tasks_of(os.getuid())
        return os.fork()

    def settle(self, limits: dict[str, Any]) -> None:
        """Take a new folder, and as root a new user."""
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
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
            limits["processes_of_user"] = self._others + limits["processes"] + 512

    def confine(self, limits: dict[str, Any]) -> None:
        """Live in the folder, as root under the new user."""
        os.chdir(self._folder)
        for name in ("HOME", "TMPDIR", "PWD"):
            os.environ[name] = self._folder
        if self._root:
            kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
            os.setgroups([])
            os.setresgid(self._uid, self._uid, self._uid)
            os.setresuid(self._uid, self._uid, self._uid)
            kernel.set_capabilities(self._arch, self._rights)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        # Should everyone who watches it be killed at once, then so is it.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._supervisor:
            os._exit(1)

    def members(self) -> list[int]:
        """All descendants of the supervisor."""
        return processes.descendants(os.getpid())

    def written(self) -> int:
        """Bytes in the folder, and in files that were removed but are still open."""
        now = time.monotonic()
        if now - self._sized > _SIZE_S:
            self._sized = now
            self._size = processes.size_of(self._folder, self._most + 1)
            self._size += processes.size_of_deleted(self.members(), self._device)
        return self._size

    def empty(self) -> None:
        """Kill all that is left."""
        processes.end_descendants()

    def clear(self) -> None:
        """Remove the folder."""
        processes.remove_folder(self._folder)

    def recover(self, pid: int) -> None:
        """Remove the folder of a supervisor that was killed; its orphans are gone by now."""
        processes.remove_folder(f"{self._base}/{pid}")


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
        return kernel.assemble(
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
        kernel.install(
            self._filters[shared] if self._may_signal else self._filter(shared, os.getpid())
        )
        self._places.folder = self._folder
