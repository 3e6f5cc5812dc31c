"""Landlock: a process gives up the file system, the network and signals, but for named places."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from dare.sandbox.inside.calls import syscall

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
