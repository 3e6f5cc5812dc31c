"""Programs that a sandbox must run as any Python would, and programs that it must withstand.

An honest program prints `ok`. A hostile one prints `ESCAPED` when it gets what it wants; `ends`
lists the ways in which it may end. `{secret}`, `{folder}` and `{judge}` are the path of a file
that it must not read, that file's folder and the process id of the judge.

Run as a script, this tries all of them on the back-end named and prints what failed as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from dare_sandbox import Ended, Job, Limits, Sandbox, launch, open_sandbox
from dare_sandbox.inside.system import STRETCH
from dare_sandbox.local import LocalSandbox

LIMITS = Limits(wall_s=8.0, cpu_s=4.0, memory_mb=256, output_bytes=4 << 20)
SHORT = replace(LIMITS, wall_s=1.0, cpu_s=1.0)
SMALL = replace(LIMITS, wall_s=4.0, memory_mb=96)

HONEST = {
    "input": ("print('ok' if input() == 'first' and input() == 'second' else 0)", b"first\nsecond"),
    "open(0)": ("print('ok' if open(0).read() == 'text' else 0)", b"text"),
    "stdin.buffer": (
        "import sys; print('ok' if sys.stdin.buffer.read() == bytes(range(256)) else 0)",
        bytes(range(256)),
    ),
    "large input": (
        "import sys; print('ok' if sum(map(int, sys.stdin)) == 300000 else 0)",
        b"1\n" * 300000,
    ),
    "/dev/stdin": ("print('ok' if open('/dev/stdin').read() == 'x' else 0)", b"x"),
    "threads": (
        "import threading, queue\nq = queue.Queue()\n"
        "ts = [threading.Thread(target=q.put, args=(i,)) for i in range(20)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]\nprint('ok' if q.qsize() == 20 else 0)",
        b"",
    ),
    "thread outlives main": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('ok'))).start()",
        b"",
    ),
    "large thread stack": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 28)\n"
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print('ok' if f(50000) == 50000 else 0))\n"
        "t.start(); t.join()",
        b"",
    ),
    "deep recursion": (
        "import sys, functools\nsys.setrecursionlimit(10**6)\n"
        "@functools.lru_cache(None)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
        "print('ok' if f(30000) == 30000 else 0)",
        b"",
    ),
    "tempfile": (
        "import tempfile, os\nwith tempfile.TemporaryDirectory() as d:\n"
        "    p = os.path.join(d, 'a'); open(p, 'w').write('x'); os.rename(p, p + 'b')\n"
        "    print('ok' if open(p + 'b').read() == 'x' else 0)",
        b"",
    ),
    "fork and pipe": (
        "import os\nr, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, b'ok'); os._exit(0)\n"
        "os.wait(); print(os.read(r, 10).decode())",
        b"",
    ),
    "multiprocessing": (
        "import multiprocessing as m\ndef f(c): c.send('ok')\nif __name__ == '__main__':\n"
        "    a, b = m.get_context('fork').Pipe()\n"
        "    p = m.get_context('fork').Process(target=f, args=(b,)); p.start()\n"
        "    print(a.recv()); p.join()",
        b"",
    ),
    "asyncio": (
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 'ok'\n"
        "print(asyncio.run(f()))",
        b"",
    ),
    "big integers": ("print('ok' if len(bin(3 ** 200000)) > 300000 else 0)", b""),
    "numpy": ("import numpy as np; print('ok' if np.arange(10).sum() == 45 else 0)", b""),
    "exit": ("import sys\nprint('ok')\nexit()\nprint('no')", b""),
    "atexit": ("import atexit; atexit.register(lambda: print('ok'))", b""),
    "destructor": ("class A:\n    def __del__(s): print('ok')\na = A()", b""),
    "os._exit": ("import os; print('ok', flush=True); os._exit(0)", b""),
    "main": (
        "if __name__ == '__main__':\n    import __main__; print(__main__.__name__ and 'ok')",
        b"",
    ),
    "dataclass": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\n"
        "class A:\n    x: int\nimport pickle\nb = pickle.dumps(A(3))\n"
        "print('ok' if pickle.loads(b).x == 3 else 0)",
        b"",
    ),
    "alarm": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: print('ok'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05); signal.pause()",
        b"",
    ),
    "own limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_STACK, (1 << 26, 1 << 26))\n"
        "print('ok')",
        b"",
    ),
    "unicode": ("print('ok' if input() == 'żółć' else 0)", "żółć".encode()),
}

_DIE = (Ended.SIGNALLED, Ended.TIME, Ended.MEMORY, Ended.OUTPUT, Ended.EXITED)
_CTYPES = "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n"


@dataclass(frozen=True)
class Hostile:
    """A program, how it may end, and the limits that it is given."""

    source: str
    ends: tuple[Ended, ...] = (Ended.EXITED,)
    limits: Limits = LIMITS


def _tries(action: str, imports: str = "os") -> Hostile:
    """A program that has escaped when the action raises nothing."""
    return Hostile(
        f"import {imports}\ntry:\n    r = {action}\n"
        "    print('ESCAPED', r)\nexcept Exception as e:\n    print('held', e)\n"
    )


def _calls(name: str, x86: int, arm: int, args: str = "0, 0, 0, 0, 0") -> Hostile:
    """A program that has escaped when the kernel does anything but refuse the call."""
    return Hostile(
        f"{_CTYPES}n = {arm} if os.uname().machine in ('aarch64', 'arm64') else {x86}\n"
        f"r = libc.syscall(n, {args}); e = ctypes.get_errno()\n"
        f"print('held' if r == -1 and e in (1, 38) else 'ESCAPED {name}', r, e)"
    )


HOSTILE = {
    "endless loop": Hostile("while True: pass", (Ended.TIME,), SHORT),
    "endless sleep": Hostile("import time; time.sleep(100)", (Ended.TIME,), SHORT),
    "deaf to signals": Hostile(
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        (Ended.TIME,),
        SHORT,
    ),
    "fork bomb": Hostile(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", _DIE, SHORT
    ),
    "thread bomb": Hostile(
        "import threading, time\ntry:\n    for i in range(5000):\n"
        "        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "    print('ESCAPED')\nexcept RuntimeError: print('held')",
        _DIE,
        SHORT,
    ),
    "memory bomb": Hostile(
        "x = []\nwhile True: x.append(bytearray(1 << 20))", (Ended.MEMORY,), SMALL
    ),
    "memory at once": Hostile("x = b'x' * (1 << 40)", (Ended.MEMORY,), SMALL),
    "memory in children": Hostile(
        # Filled at once and held: on a busy machine random bytes could take longer than the time
        # limit, and the watcher comes round late.
        "import os, time\nfor i in range(8): \n    if os.fork() == 0: break\n"
        "x = b'x' * (30 << 20); time.sleep(30); print('ESCAPED')",
        (Ended.MEMORY,),
        SMALL,
    ),
    "memory without a first thread": Hostile(
        f"{_CTYPES}import threading\nx = []\ndef bomb():\n"
        "    while True: x.append(os.urandom(1 << 20))\n"
        "threading.Thread(target=bomb).start()\n"
        "libc.syscall(93 if os.uname().machine in ('aarch64', 'arm64') else 60, 0)",
        (Ended.MEMORY,),
        SMALL,
    ),
    "shared memory": Hostile(
        "import mmap, os\nm = []\ntry:\n    for i in range(40):\n"
        "        b = mmap.mmap(-1, 8 << 20)\n"
        "        b[:] = b'x' * (8 << 20); b.madvise(mmap.MADV_DONTNEED); m.append(b)\n"
        "    print('ESCAPED')\nexcept (OSError, MemoryError): print('held')",
        (Ended.EXITED, Ended.MEMORY, Ended.SIGNALLED),
        SMALL,
    ),
    "file too large": _tries("open('f', 'wb').write(b'x' * (200 << 20))"),
    "many files": Hostile(
        "import os, time\ntry:\n    for i in range(200):\n"
        "        open(f'f{i}', 'wb').write(b'x' * (4 << 20))\n"
        "    time.sleep(1); print('ESCAPED')\nexcept OSError: print('held')",
        _DIE,
    ),
    "deleted files": Hostile(
        "import os, time\nfs = []\ntry:\n    for i in range(100):\n"
        "        f = open(f'f{i}', 'wb', 0)\n"
        "        f.write(b'x' * (8 << 20)); os.unlink(f'f{i}'); fs.append(f)\n"
        "    time.sleep(1); print('ESCAPED')\nexcept OSError: print('held')",
        _DIE,
    ),
    "endless output": Hostile("while True: print('x' * 10000)", (Ended.OUTPUT,)),
    "endless errors": Hostile(
        "import sys\nwhile True: sys.stderr.write('x' * 10000)", (Ended.OUTPUT,)
    ),
    "reads the secret": _tries("open({secret!r}).read()"),
    "reads it by a link": _tries("(os.symlink({secret!r}, 'link'), open('link').read())"),
    "links to it": _tries("(os.link({secret!r}, 'link'), open('link').read())"),
    "lists its folder": _tries("os.listdir({folder!r})"),
    "writes beside it": _tries("open({folder!r} + '/new', 'w')"),
    "removes it": _tries("os.unlink({secret!r})"),
    "truncates it": _tries("os.truncate({secret!r}, 0)"),
    "opens it": _tries(
        "os.chmod({secret!r}, 0o777); assert os.stat({secret!r}).st_mode & 0o777 == 0o777"
    ),
    "touches it": _tries("os.utime({secret!r}, (1, 1)); assert os.stat({secret!r}).st_mtime == 1"),
    "reads the password file": _tries("open('/etc/passwd').read()"),
    "lists the home": _tries("os.listdir(os.path.expanduser('~root'))"),
    "reads the judge's environment": _tries("open('/proc/{judge}/environ', 'rb').read()"),
    "reads the judge's memory": _tries("open('/proc/{judge}/mem', 'rb')"),
    "reads the judge's files": _tries("os.listdir('/proc/{judge}/fd')"),
    "reads the first environment": Hostile(
        "try:\n    t = open('/proc/1/environ', 'rb').read()\n"
        "    print('ESCAPED' if b'SECRET' in t else 'held')\nexcept OSError: print('held')"
    ),
    "reads every environment": Hostile(
        "import glob\nfor p in glob.glob('/proc/[0-9]*/environ') + ['/proc/1/environ']:\n"
        "    try:\n        if b'SECRET' in open(p, 'rb').read(): print('ESCAPED')\n"
        "    except OSError: pass"
    ),
    "environment": Hostile(
        "import os\nprint('ESCAPED' if any('SECRET' in x for x in os.environ) else 'held')"
    ),
    "descriptors": Hostile(
        "import os\nfor n in range(3, 1024):\n    try: os.fstat(n); print('ESCAPED', n)\n"
        "    except OSError: pass"
    ),
    "writes host settings": _tries("open('/proc/sys/kernel/core_pattern', 'r+')"),
    "writes to sysfs": _tries("open('/sys/kernel/mm/transparent_hugepage/enabled', 'r+')"),
    "patches the library": _tries("open(os.__file__, 'r+')"),
    "writes to /": _tries("open('/new', 'w')"),
    "writes to /dev": _tries("open('/dev/new', 'w')"),
    "opens a disk": _tries("[open('/dev/' + x) for x in ('vda', 'sda', 'mem', 'kmsg', 'tty')]"),
    "TCP": _tries("socket.create_connection(('127.0.0.1', 22), 1)", "socket"),
    "UDP": _tries("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "socket"),
    "names": _tries("socket.getaddrinfo('example.com', 80)", "socket"),
    "UNIX socket": _tries("socket.socket(socket.AF_UNIX)", "socket"),
    "datagram pair": _tries(
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'', '\\0x')", "socket"
    ),
    "vsock": _tries("socket.socket(40, socket.SOCK_STREAM)", "socket"),
    "kills the judge": _tries("os.kill({judge}, 9)"),
    "signals by a descriptor": _tries(
        "[fcntl.fcntl(os.pipe()[0], c, {judge}) for c in (fcntl.F_SETOWN,)]", "fcntl, os"
    ),
    "limits the judge": _tries(
        "resource.prlimit({judge}, resource.RLIMIT_CPU, (1, 1))", "resource"
    ),
    "renices the judge": _tries("os.setpriority(os.PRIO_PROCESS, {judge}, 19)"),
    "pins the judge": _tries("os.sched_setaffinity({judge}, [0])"),
    "kills everyone": Hostile(
        "import os, signal\nfor s in (signal.SIGSTOP, signal.SIGKILL):\n"
        "    for p in (-1, os.getppid(), 1, 0):\n"
        "        try: os.kill(p, s)\n        except OSError: pass\nprint('held')",
        _DIE,
        SHORT,
    ),
    "kills its parent": Hostile(
        "import os, signal\ntry: os.kill(os.getppid(), signal.SIGKILL)\n"
        "except OSError: pass\nprint('held')",
        (Ended.EXITED,),
    ),
    "stops the init": Hostile(
        "import os, signal, time\nfor p in (1, os.getppid()):\n"
        "    try: os.kill(p, signal.SIGSTOP)\n    except OSError: pass\ntime.sleep(100)",
        (Ended.TIME,),
        SHORT,
    ),
    "daemon": Hostile(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.closerange(0, 99)\n        time.sleep(100)\n    os._exit(0)\nos.wait()"
    ),
    "daemons that breed": Hostile(
        "import os, time\nfor i in range(10):\n    if os.fork() == 0:\n        while True:\n"
        "            if os.getpgid(0) != os.getpid(): os.setsid()\n"
        "            if os.fork(): os._exit(0)\n            time.sleep(0.001)\n",
        _DIE,
        SHORT,
    ),
    "leaves a deep folder": Hostile(
        "import os\nfor i in range(3000):\n    os.mkdir('d'); os.chdir('d')\nprint('held')",
        _DIE,
    ),
    "leaves a closed folder": Hostile(
        "import os\nos.mkdir('d'); open('d/f', 'w'); os.mkdir('d/e', 0)\nprint('held')"
    ),
    "32-bit calls": Hostile(
        "import ctypes, mmap, os\nif os.uname().machine == 'x86_64':\n"
        "    m = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)\n"
        "    m.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')\n"
        "    a = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
        "    print('ESCAPED', ctypes.CFUNCTYPE(ctypes.c_int)(a)())",
        (Ended.SIGNALLED, Ended.EXITED),
    ),
    "x32 calls": Hostile(
        f"{_CTYPES}if os.uname().machine == 'x86_64':\n"
        "    print('ESCAPED', libc.syscall(0x40000000 | 39))",
        (Ended.SIGNALLED, Ended.EXITED),
    ),
    "ptrace": _calls("ptrace", 101, 117),
    "process_vm_writev": _calls("process_vm_writev", 311, 271),
    "keyctl": _calls("keyctl", 250, 219),
    "add_key": _calls("add_key", 248, 217),
    "io_uring": _calls("io_uring", 425, 425),
    "bpf": _calls("bpf", 321, 280),
    "perf": _calls("perf", 298, 241),
    "userfaultfd": _calls("userfaultfd", 323, 282),
    "memfd": _calls("memfd", 319, 279, "b'x', 0"),
    "shmget": _calls("shmget", 29, 194, "0, 4096, 0o1600"),
    "msgget": _calls("msgget", 68, 186),
    "mq_open": _calls("mq_open", 240, 180),
    "unshare": _calls("unshare", 272, 97, "0x10000000"),
    "clone": _calls("clone", 56, 220, "0x10000000 | 17, 0, 0, 0, 0"),
    "clone3": _calls("clone3", 435, 435),
    "mount": _calls("mount", 165, 40),
    "pivot_root": _calls("pivot_root", 155, 41),
    "inotify": _calls("inotify", 294, 26),
    "open_by_handle_at": _calls("open_by_handle_at", 304, 265),
    "fsopen": _calls("fsopen", 430, 430, "b'tmpfs', 0"),
    "setuid": _calls("setuid", 105, 146),
    "pidfd_getfd": _calls("pidfd_getfd", 438, 438),
    "crash": Hostile("import ctypes; ctypes.string_at(0)", (Ended.SIGNALLED,)),
    "kills itself": Hostile("import os; os.kill(os.getpid(), 9)", (Ended.SIGNALLED,)),
    "no stack left": Hostile(
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n"
        "    def __getattr__(s, n): return getattr(s, n + 'x' if len(n) < 4 else n)\nA().x",
        _DIE,
    ),
    "undecodable output": Hostile(
        "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.exit('\\udcff')"
    ),
}


def honest_failures(sandbox: Sandbox) -> list[str]:
    """What goes wrong with honest programs."""

    def attempt(name: str) -> str:
        source, stdin = HONEST[name]
        result = sandbox.run(Job(source, stdin, LIMITS))
        if name == "numpy" and b"ModuleNotFoundError" in result.stderr:
            return ""
        right = (result.ended, result.code, result.stdout) == (Ended.EXITED, 0, b"ok\n")
        return "" if right else f"honest {name}: {result}"

    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(HONEST, pool.map(attempt, HONEST), strict=True))
    # One that the clock stopped on a busy machine is tried again alone.
    late = [name for name, failure in found.items() if Ended.TIME in failure]
    found |= {name: attempt(name) for name in late}
    return [failure for failure in found.values() if failure]


def hostile_failures(sandbox: Sandbox, base: str) -> list[str]:
    """What hostile programs achieve. Each must also be gone when `wait` returns."""

    def attempt(item: tuple[int, str]) -> list[str]:
        number, name = item
        folder = Path(base) / str(number)
        folder.mkdir()
        return [f"hostile {name}: {what}" for what in _hostile(sandbox, HOSTILE[name], folder)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(attempt, enumerate(HOSTILE)))
    # On a busy machine the clock may be first where memory should have been, or a program takes
    # long to be gone: those that were held, but late, are tried again alone.
    for number, name in enumerate(HOSTILE):
        for again in range(1, 4):
            late = all("took " in one or ": time_limit " in one for one in found[number])
            if not found[number] or not late or any("ESCAPED" in one for one in found[number]):
                break
            found[number] = attempt((number + again * len(HOSTILE), name))
    return [failure for failures in found for failure in failures]


def _hostile(sandbox: Sandbox, program: Hostile, folder: Path) -> Iterator[str]:
    secret = folder / "secret"
    secret.write_text("SECRET")
    secret.chmod(0o644)
    before = secret.stat()
    source = program.source.replace("{secret!r}", repr(str(secret)))
    source = source.replace("{folder!r}", repr(str(folder))).replace("{judge}", str(os.getpid()))
    started = time.monotonic()
    running = sandbox.start(Job(source, b"", program.limits, channel="setsid" in source))
    result = running.wait()
    ends = (*program.ends, *([Ended.EXITED] if _starved(result.stderr) else []))
    if b"ESCAPED" in result.stdout or result.ended not in ends:
        yield f"{result.ended} {result.stdout[:200]!r} {result.stderr[-300:]!r} {result.detail}"
    # What it waits for a processor does not count; the judge's own clock is the last word.
    if time.monotonic() - started > (1 + STRETCH) * program.limits.wall_s + 10:
        yield f"took {time.monotonic() - started:.1f} s"
    after = secret.stat()
    same = all(getattr(before, x) == getattr(after, x) for x in ("st_mode", "st_mtime", "st_nlink"))
    if not same or secret.read_text() != "SECRET" or os.listdir(folder) != ["secret"]:
        yield "changed the judge's files"
    if running.channel is not None:
        with running.channel as channel:
            channel.settimeout(2.0)
            try:
                if channel.recv(1):
                    yield "wrote to the channel"
            except TimeoutError:
                yield "a process outlived its run"


def _starved(stderr: bytes) -> bool:
    """Whether another program had taken all processes that the kernel lets this user have."""
    words = (b"Resource temporarily unavailable", b"can't start new thread")
    return os.getuid() != 0 and any(word in stderr for word in words)


def open_backend(name: str) -> Sandbox:
    """A back-end by name; `landlock:N` uses nothing newer than version N of Landlock."""
    kind, _, version = name.partition(":")
    if not version:
        return open_sandbox(kind)
    return LocalSandbox(replace(launch.LANDLOCK, abi=int(version)))


def main() -> None:
    """Try everything on one back-end."""
    sandbox = open_backend(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        failures = [*honest_failures(sandbox), *hostile_failures(sandbox, folder)]
    sandbox.close()
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
