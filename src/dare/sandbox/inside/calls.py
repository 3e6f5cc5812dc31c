"""System calls that Python has no name for."""

from __future__ import annotations

import ctypes
import os
import signal
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
_HELD = ctypes.PyDLL(None, use_errno=True)  # calls that keep the interpreter's lock

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP = 1, 4, 8, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38

CLONE = {"x86_64": 56, "aarch64": 220}
CAPSET = {"x86_64": 126, "aarch64": 91}
CAP_DAC_READ_SEARCH = 2


def check(result: int, what: str) -> int:
    """The result of a C call, or the `OSError` that it stands for."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *args: int | bytes | None) -> int:
    """Make a system call by its number."""
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return check(LIBC.syscall(ctypes.c_long(number), *words), what)


def prctl(option: int, value: int) -> None:
    """Set one property of this process."""
    zero = ctypes.c_ulong(0)
    check(LIBC.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl({option})")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system."""
    check(
        LIBC.mount(
            source.encode(),
            target.encode(),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            options.encode() or None,
        ),
        f"mount {target}",
    )


def clone(arch: str, flags: int) -> int:
    """Fork into the new namespaces named by `flags`; 0 in the child, as with `os.fork`.

    Python is not told. That is sound in a process of one thread that forks once more before it
    runs anything but the sandbox's own code, and it saves a fork: `unshare` moves only children.
    """
    zero = ctypes.c_long(0)
    number, word = ctypes.c_long(CLONE[arch]), ctypes.c_long(flags | signal.SIGCHLD)
    return check(_HELD.syscall(number, word, zero, zero, zero, zero), "clone")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    check(LIBC.unshare(flags), "unshare")


def set_capabilities(arch: str, mask: int) -> None:
    """Hold exactly these capabilities (the first 32 have all that is ever kept)."""
    header = struct.pack("<Ii", 0x20080522, 0)
    syscall("capset", CAPSET[arch], header, struct.pack("<6I", mask, mask, 0, 0, 0, 0))
