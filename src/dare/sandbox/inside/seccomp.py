"""The system call filter, as classic BPF written by hand."""

from __future__ import annotations

import ctypes
import struct

from dare.sandbox.inside.calls import LIBC, PR_SET_SECCOMP, check
from dare.sandbox.inside.syscalls import AUDIT_ARCH, numbers

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOMEM, ENOSYS = 1, 12, 38
_NOTHING_DONE = 0  # the call is not made, and the program is told that it was

_LOAD, _EQUAL, _NOT_BELOW, _ANY_BIT, _AND = 0x20, 0x15, 0x35, 0x45, 0x54
_SKIP, _RETURN = 0x05, 0x06
_NUMBER_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16

_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_HUGE_PAGES = 0x40000
# isatty, close-on-exec, (non-)blocking, bytes waiting, terminal size
_IOCTLS = (0x5401, 0x5451, 0x5450, 0x5421, 0x541B, 0x5413)
# Owner and signal of a descriptor (a way to signal others), leases, notices, larger pipes
_FCNTLS = (8, 10, 15, 1024, 1026, 1031)
_MODES = "chmod fchmod fchmodat utime utimes utimensat futimesat"
_OWNERS = "chown lchown fchown fchownat"

Code = list[tuple[int, int, int, int]]


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> tuple[int, int, int, int]:
    return (code, yes, no, value)


def _refuse(errno: int) -> tuple[int, int, int, int]:
    return _op(_RETURN, 0x00050000 | errno)


def _argument(index: int) -> tuple[int, int, int, int]:
    """Load the low half of an argument: every argument judged here is a C int or low flags."""
    return _op(_LOAD, _ARGS_AT + 8 * index)


def only(index: int, *values: int) -> Code:
    """Go on when the argument is one of `values`."""
    tests = [_op(_EQUAL, value, yes=len(values) - i) for i, value in enumerate(values)]
    return [_argument(index), *tests, _refuse(EPERM)]


def never(index: int, *values: int) -> Code:
    """Go on unless the argument is one of `values`."""
    code = [_argument(index)]
    for value in values:
        code += [_op(_EQUAL, value, no=1), _refuse(EPERM)]
    return code


def without(index: int, bits: int) -> Code:
    """Go on when the argument has none of these bits."""
    return [_argument(index), _op(_ANY_BIT, bits, no=1), _refuse(EPERM)]


def unlike(index: int, mask: int, value: int, errno: int) -> Code:
    """Go on unless the argument under `mask` is `value`."""
    return [_argument(index), _op(_AND, mask), _op(_EQUAL, value, no=1), _refuse(errno)]


def like(index: int, mask: int, value: int) -> Code:
    """Go on when the argument under `mask` is `value`."""
    return [_argument(index), _op(_AND, mask), _op(_EQUAL, value, yes=1), _refuse(EPERM)]


def _conditions(
    own_pid: int | None, shared_memory: bool, ownership: bool, truncate: bool
) -> dict[str, list[tuple[int, int, int, int]]]:
    rules = {
        "clone": without(0, _NAMESPACES),
        "ioctl": only(1, *_IOCTLS),
        "fcntl": never(1, *_FCNTLS),
        # Stream pairs only: a datagram pair could still send to an address. asyncio needs these.
        "socketpair": only(0, 1) + like(1, 0xF, 1),
        # Other processes of the same user have limits and priorities too.
        "prlimit64": only(0, 0),
        "setpriority": only(0, 0) + only(1, 0),
        "sched_setaffinity": only(0, 0),
    }
    rules["mmap"] = without(3, _HUGE_PAGES)  # they are in no process's resident size
    if not shared_memory:  # nor are shared pages that nobody maps
        rules["mmap"] += unlike(3, 0x21, 0x21, ENOMEM)
    if not ownership:  # Landlock does not guard modes, owners and times; shutil.copy sets them
        rules |= {name: [_refuse(EPERM)] for name in _OWNERS.split()}
        rules |= {name: [_refuse(_NOTHING_DONE)] for name in _MODES.split()}
    if not truncate:  # nor, in its first versions, this
        rules["truncate"] = [_refuse(EPERM)]
    if own_pid is not None:
        rules |= {"kill": only(0, own_pid), "tgkill": only(0, own_pid), "tkill": [_refuse(EPERM)]}
    return rules


def _search(blocks: list[tuple[int, Code]]) -> Code:
    """Find the block of the call by halving: the kernel tries a new filter on every number."""
    if len(blocks) <= 3:
        code: Code = []
        for number, block in blocks:
            code += [_op(_EQUAL, number, no=len(block)), *block]
        return [*code, _refuse(ENOSYS)]
    middle = len(blocks) // 2
    low, high = _search(blocks[:middle]), _search(blocks[middle:])
    return [_op(_NOT_BELOW, blocks[middle][0], no=1), _op(_SKIP, len(low)), *low, *high]


def assemble(
    arch: str,
    *,
    own_pid: int | None = None,
    shared_memory: bool = False,
    ownership: bool = True,
    truncate: bool = True,
) -> bytes:
    """The filter for a program.

    With `own_pid` it may signal no other process; without `shared_memory` it may not map shared
    anonymous memory; without `ownership` it cannot change modes, owners and times of files, and
    without `truncate` it cannot cut a file that it has not opened.
    """
    table = numbers(arch)
    rules = _conditions(own_pid, shared_memory, ownership, truncate)
    code: Code = [
        _op(_LOAD, _ARCH_AT),
        _op(_EQUAL, AUDIT_ARCH[arch], yes=1),
        _op(_RETURN, KILL),
        _op(_LOAD, _NUMBER_AT),
    ]
    if arch == "x86_64":  # the x32 calls share the architecture and differ by this bit
        code += [_op(_ANY_BIT, 0x40000000, no=1), _op(_RETURN, KILL)]
    blocks = {number: [*rules.get(name, []), _op(_RETURN, ALLOW)] for name, number in table.items()}
    code += _search(sorted(blocks.items()))
    return b"".join(struct.pack("<HBBI", *op) for op in code)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Filter this process and its children from here on; it needs no-new-privileges."""
    pointer = ctypes.byref(_Program(len(program) // 8, program))
    check(LIBC.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), pointer), "prctl(seccomp)")
