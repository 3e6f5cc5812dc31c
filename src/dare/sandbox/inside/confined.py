"""Rooms without namespaces: Landlock, or (dangerously) nothing but limits."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import time
from typing import Any

from dare.sandbox.inside import calls, landlock, locks, places, seccomp, sweep, usage
from dare.sandbox.inside.paths import open_to_all

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
        self._rights = 1 << calls.CAP_DAC_READ_SEARCH if hidden else 0
        self._counted = 0.0
        self._others = 0
        calls.prctl(calls.PR_SET_CHILD_SUBREAPER, 1)

    def fork(self) -> int:
        """Fork the supervisor."""
        now = time.monotonic()
        if not self._root and now - self._counted > _COUNT_S:
            self._counted, self._others = now, usage.tasks_of(os.getuid())
        return os.fork()

    def settle(self, limits: dict[str, Any]) -> None:
        """Take a new folder, and as root a new user."""
        calls.prctl(calls.PR_SET_CHILD_SUBREAPER, 1)
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
            calls.prctl(calls.PR_SET_KEEPCAPS, 1)
            os.setgroups([])
            os.setresgid(self._uid, self._uid, self._uid)
            os.setresuid(self._uid, self._uid, self._uid)
            calls.set_capabilities(self._arch, self._rights)
            calls.prctl(calls.PR_SET_DUMPABLE, 1)
        calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)
        # Should everyone who watches it be killed at once, then so is it.
        calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._supervisor:
            os._exit(1)

    def members(self) -> list[int]:
        """All descendants of the supervisor."""
        return usage.descendants(os.getpid())

    def written(self) -> int:
        """Bytes in the folder, and in files that were removed but are still open."""
        now = time.monotonic()
        if now - self._sized > _SIZE_S:
            self._sized = now
            self._size = sweep.size_of(self._folder, self._most + 1)
            self._size += sweep.size_of_deleted(self.members(), self._device)
        return self._size

    def empty(self) -> None:
        """Kill all that is left."""
        sweep.end_descendants()

    def clear(self) -> None:
        """Remove the folder."""
        sweep.remove_folder(self._folder)

    def recover(self, pid: int) -> None:
        """Remove the folder of a supervisor that was killed; its orphans are gone by now."""
        sweep.remove_folder(f"{self._base}/{pid}")


class LandlockRoom(BareRoom):
    """The same, with every file, socket and process of others out of reach."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._abi = min(landlock.version(), config["abi"])
        if self._abi == 0:
            raise OSError("this kernel has no Landlock (5.13 or later, enabled at boot)")
        self._readable: list[str] = config["readable"]
        # Without Landlock's own guard of signals, and without a user of its own, it signals nobody.
        self._may_signal = self._abi >= landlock.SIGNALS_SINCE or self._root
        self._filters = [self._filter(shared) for shared in (False, True)]
        self._places = places.Places(self._readable)
        locks.install()

    def _filter(self, shared: bool, pid: int | None = None) -> bytes:
        # Landlock guards no modes and owners; a user of its own has nothing else to change.
        return seccomp.assemble(
            self._arch,
            own_pid=pid,
            shared_memory=shared,
            ownership=self._root,
            truncate=self._root or self._abi >= landlock.TRUNCATE_SINCE,
        )

    def confine(self, limits: dict[str, Any]) -> None:
        """Landlock for files, seccomp for all that Landlock does not guard."""
        # Opened while this is still root: the interpreter may be in a closed folder.
        wanted = [[*self._readable], [*_DEVICES], [self._folder]]
        opened = [[os.open(path, os.O_PATH) for path in paths] for paths in wanted]
        super().confine(limits)
        landlock.restrict(self._abi, *opened)
        for descriptor in itertools.chain(*opened):
            os.close(descriptor)
        shared = bool(limits["cgroup"])
        seccomp.install(
            self._filters[shared] if self._may_signal else self._filter(shared, os.getpid())
        )
        self._places.folder = self._folder
