"""System calls that Python has no name for, the filter of those that a program may make, and /proc.

What a group of processes uses, its end, and the removal of a folder however it was left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import stat
import struct
from collections.abc import Collection, Iterable
from typing import NamedTuple

LIBC = ctypes.CDLL(None, use_errno=True)
_HELD = ctypes.PyDLL(None, use_errno=True)  # calls that keep the interpreter's lock

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP = 1, 4, 8, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38

CLONE = {"x86_64": 56, "aarch64": 220}
CAPSET = {"x86_64": 126, "aarch64": 91}
CAP_DAC_READ_SEARCH = 2
UNUSED_UIDS = (60578, 606)  # the first and how many: a range that no distribution assigns


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


def open_to_all(path: str) -> bool:
    """Whether any user may read this: every folder above it lets them through."""
    if not os.stat(path).st_mode & 0o004:
        return False
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & 0o001:
            return False
    return True


# The system calls a program may make, with their numbers on x86_64 and on aarch64. Whatever is not
# named here does not exist for the program (`ENOSYS`): sockets other than those it already holds,
# keyrings, io_uring, bpf, perf, memfd, System V memory, tracing, mounts, namespaces, kernel modules
# and whatever the kernel will grow next.
_TABLE = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79,
statx 332 291, poll 7 -, ppoll 271 73, lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215,
brk 12 214, mremap 25 216, madvise 28 233, msync 26 227, mincore 27 232, rt_sigaction 13 134,
rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigsuspend 130 133,
rt_sigtimedwait 128 137, sigaltstack 131 132, ioctl 16 29, pread64 17 67, pwrite64 18 68,
readv 19 65, writev 20 66, preadv 295 69, pwritev 296 70, preadv2 327 286, pwritev2 328 287,
access 21 -, faccessat 269 48, faccessat2 439 439, pipe 22 -, pipe2 293 59, select 23 -,
pselect6 270 72, sched_yield 24 124, dup 32 23, dup2 33 -, dup3 292 24, pause 34 -,
nanosleep 35 101, clock_nanosleep 230 115, getitimer 36 102, setitimer 38 103, alarm 37 -,
getpid 39 172, gettid 186 178, getppid 110 173, sendto 44 206, recvfrom 45 207, sendmsg 46 211,
recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243, shutdown 48 210, getsockname 51 204,
getpeername 52 205, socketpair 53 199, getsockopt 55 209, clone 56 220, fork 57 -, vfork 58 -,
execve 59 221, execveat 322 281, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95,
kill 62 129, tgkill 234 131, tkill 200 130, uname 63 160, fcntl 72 25, flock 73 32, fsync 74 82,
fdatasync 75 83, truncate 76 45, ftruncate 77 46, fallocate 285 47, getdents 78 -,
getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, rename 82 -, renameat 264 38,
renameat2 316 276, mkdir 83 -, mkdirat 258 34, rmdir 84 -, creat 85 -, link 86 -, linkat 265 37,
unlink 87 -, unlinkat 263 35, symlink 88 -, symlinkat 266 36, readlink 89 -, readlinkat 267 78,
chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -, lchown 94 -, fchown 93 55,
fchownat 260 54, umask 95 166, utime 132 -, utimes 235 -, utimensat 280 88, futimesat 261 -,
gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, time 201 -, times 100 153,
getrlimit 97 163, setrlimit 160 164, prlimit64 302 261, getrusage 98 165, sysinfo 99 179,
getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177, getresuid 118 148,
getresgid 120 150, getgroups 115 158, getpgrp 111 -, getpgid 121 155, setpgid 109 154,
setsid 112 157, getsid 124 156, statfs 137 43, fstatfs 138 44, getpriority 140 141,
setpriority 141 140, sched_getparam 143 121, sched_getscheduler 145 120,
sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_rr_get_interval 148 127,
sched_getaffinity 204 123, sched_setaffinity 203 122, mlock 149 228, mlock2 325 284,
munlock 150 229, mlockall 151 230, munlockall 152 231, prctl 157 167, arch_prctl 158 -,
sync_file_range 277 84, futex 202 98, futex_waitv 449 449, set_tid_address 218 96,
set_robust_list 273 99, get_robust_list 274 100, rseq 334 293, membarrier 324 283,
restart_syscall 219 128, getcpu 309 168, getrandom 318 278, epoll_create 213 -,
epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22,
epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19, signalfd 282 -, signalfd4 289 74,
timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87, timer_create 222 107,
timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111,
sendfile 40 71, splice 275 76, tee 276 77, vmsplice 278 75, copy_file_range 326 285,
openat 257 56, openat2 437 437, close_range 436 436, pidfd_open 434 434, fadvise64 221 223,
readahead 187 213, capget 125 90, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10,
listxattr 194 11, llistxattr 195 12, flistxattr 196 13
"""

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def machine() -> str:
    """The architecture whose numbers hold here; a 32-bit interpreter has none."""
    name = os.uname().machine
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def numbers(arch: str) -> dict[str, int]:
    """Name and number of every allowed call that `arch` has."""
    column = {"x86_64": 1, "aarch64": 2}[arch]
    rows = [entry.split() for entry in _TABLE.replace("\n", " ").split(",")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


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


_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


STRETCH = 4
"""A wall limit is this many times longer at most for a program that the machine keeps waiting."""
START_S = 60.0
"""The most that a start may take, beside many others; alone it takes a hundredth of a second."""


class Usage(NamedTuple):
    """Private memory in bytes, processor seconds, the number of threads, and whether all of them
    are asleep or stopped: none is on a processor, ready for one, or held inside the kernel."""

    memory: int
    cpu_s: float
    threads: int
    asleep: bool


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
    with contextlib.suppress(OSError):  # it has ended: its children have a new parent
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # so has this thread: another one has its children
                result += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
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
    memory, ticks, threads, states = 0, 0, 0, b""
    for pid in pids:
        try:
            fields = _sizes(pid)
            stat = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        except OSError:  # it has just ended
            continue
        memory += (int(fields[1]) - int(fields[2])) * _PAGE
        ticks += sum(map(int, stat[11:15]))
        threads += int(stat[17])
        states += stat[0] if stat[17] == b"1" else _states(pid)
    # Of one that waits for a child to begin (vfork) the kernel says the same as of one it holds.
    held = states.strip(b"D") == b""
    return Usage(memory, ticks / _TICK, threads, b"R" not in states and not held)


def _states(pid: int) -> bytes:
    """The letters for the states of a process's threads."""
    found = b""
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += _read(f"/proc/{pid}/task/{thread}/stat").rpartition(b")")[2].split()[0]
    return found


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
    while roots := kill_descendants(spare):
        for pid in roots:
            os.waitpid(pid, 0)


def kill_descendants(spare: Collection[int] = ()) -> list[int]:
    """The same without waiting for their end; the children among them.

    Until the last has its signal, whoever dies makes room for another: waiting for one comes later.
    """
    killed: set[int] = set()
    while True:
        roots = [pid for pid in children(os.getpid()) if pid not in spare]
        found = {*roots, *(below for root in roots for below in descendants(root))} - killed
        if not found:
            return roots
        for pid in found:
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0))  # it cannot outrun the sweep
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found


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
