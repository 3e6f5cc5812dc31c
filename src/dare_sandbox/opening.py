"""Choosing a sandbox by trying it: a small program is asked to get out of it.

One that does not hold is never used.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import socket
import tempfile
import threading
from pathlib import Path

from dare_errors import InvalidInput, suggest
from dare_sandbox import launch
from dare_sandbox.base import Ended, Job, Limits, Sandbox
from dare_sandbox.local import LocalSandbox
from dare_sandbox.remote import RemoteSandbox

_LIMITS = Limits(wall_s=20.0, cpu_s=10.0)

_ATTEMPTS = '''
import ctypes, json, os, socket, sys, tempfile, threading, time
secret, folder, judge = sys.stdin.read().split("\\n")
judge = int(judge)
libc = ctypes.CDLL(None, use_errno=True)
escapes = []

def attempt(name, action):
    """An escape is an action that works."""
    try:
        if action() != -1:
            escapes.append(name)
    except Exception:
        pass

arm = os.uname().machine in ("aarch64", "arm64")
attempt("reads a file of the judge", lambda: open(secret).read())
attempt("reads the judge's environment", lambda: open(f"/proc/{judge}/environ", "rb").read())
attempt("lists the judge's folder", lambda: os.listdir(folder))
attempt("writes beside the judge's files", lambda: open(folder + "/new", "w"))
def opened():  # a call that does nothing may say that it succeeded
    os.chmod(secret, 0o777)
    return 0 if os.stat(secret).st_mode & 0o777 == 0o777 else -1

attempt("changes the judge's file", opened)
attempt("truncates the judge's file", lambda: os.truncate(secret, 0))
attempt("writes to /", lambda: open("/new", "w"))
attempt("writes to /dev", lambda: open("/dev/new", "w"))
attempt("writes to a library", lambda: open(os.__file__, "r+"))
attempt("writes a host setting", lambda: open("/proc/sys/kernel/hostname", "r+"))
if judge > 16:
    attempt("signals the judge", lambda: os.kill(judge, 0))
for family in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_VSOCK", "AF_ALG"):
    attempt("opens a socket of " + family, lambda: socket.socket(getattr(socket, family)))
numbers = {
    "ptrace": (101, 117), "add_key": (248, 217), "keyctl": (250, 219), "io_uring_setup": (425, 425),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "memfd_create": (319, 279), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "init_module": (175, 105),
    "kexec_load": (246, 104), "open_by_handle_at": (304, 265), "process_vm_readv": (310, 270),
}
for name, pair in numbers.items():
    ctypes.set_errno(0)
    # Where the filter lets it through, an odd first argument gets another error and no effect.
    if libc.syscall(pair[arm], 16, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (1, 38):
        escapes.append("may call " + name)
if os.getuid() == 0 or os.geteuid() == 0:
    escapes.append("runs as root")
extra = set(os.environ) - set(ENVIRONMENT) - {"PWD", "LC_CTYPE"}
if extra:
    escapes.append("sees the environment: " + ", ".join(sorted(extra)))
seen = []
thread = threading.Thread(target=lambda: seen.append(1))
thread.start()
thread.join()
with tempfile.TemporaryFile() as file:
    file.write(b"x" * 1000)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # a daemon that holds the channel open
        time.sleep(60)
    os._exit(0)
print(json.dumps({"escapes": escapes, "honest": len(seen)}))
'''


def examine(sandbox: Sandbox) -> str | None:
    """None when the sandbox holds and honest programs work in it; otherwise what is wrong."""
    from dare_sandbox.launch import ENVIRONMENT

    with tempfile.TemporaryDirectory(prefix="dare-probe-") as folder:
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        source = f"ENVIRONMENT = {sorted(ENVIRONMENT)!r}\n{_ATTEMPTS}"
        stdin = f"{secret}\n{folder}\n{os.getpid()}".encode()
        running = sandbox.start(Job(source, stdin, _LIMITS, channel=True))
        result = running.wait()
        if result.ended is Ended.LOST:
            return f"it does not start: {result.detail}"
        assert running.channel is not None
        with running.channel as channel:
            survived = not _closed(channel)
        if result.ended is not Ended.EXITED or result.code != 0:
            error = result.stderr.decode(errors="replace").strip()
            return f"an honest program fails in it ({result.ended}): {error[-300:]}"
        found = json.loads(result.stdout)
        if found["escapes"]:
            return f"a program in it {'; '.join(found['escapes'])}"
        if secret.read_text() != "secret":
            return "a program in it changes the judge's file"
    if survived:
        return "a program in it leaves a process behind"
    return None if found["honest"] == 1 else "threads do not run in it"


def _closed(channel: socket.socket) -> bool:
    """Whether nobody holds the other end."""
    channel.settimeout(1.0)
    try:
        return channel.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


DANGER = "DARE_DANGEROUSLY_RUN_WITHOUT_SANDBOX"
_LOCAL = {"bwrap": launch.BWRAP, "landlock": launch.LANDLOCK}
_LOG = logging.getLogger(__name__)

_lock = threading.RLock()
_open: dict[str, LocalSandbox | RemoteSandbox] = {}
_faults: dict[str, str | None] = {}


def open_sandbox(name: str = "auto", *, dangerous: bool = False) -> Sandbox:
    """The sandbox of that name, shared by the whole process and tried before its first use.

    `auto` takes the first of `bwrap` and `landlock` that holds. `remote:URL` (or just the URL) is
    a server that speaks SandboxFusion's protocol. `none` runs programs with limits but without
    any isolation, and only if `dangerous` or the environment variable
    `DARE_DANGEROUSLY_RUN_WITHOUT_SANDBOX=1` says so.
    """
    with _lock:
        if name == "auto":
            return _first_that_holds()
        if name in _LOCAL:
            fault = _fault(name)
            if fault is not None:
                raise InvalidInput("sandbox", name, f"it does not hold here: {fault}")
            return _open[name]
        if name == "none":
            return _no_sandbox(dangerous)
        if name.startswith(("remote:", "http://", "https://")):
            return _remote(name.removeprefix("remote:"))
        raise InvalidInput("sandbox", name, suggest(name, ["auto", *_LOCAL, "remote:URL", "none"]))


def probe() -> dict[str, str | None]:
    """Every back-end, with None when it can be used here and otherwise the reason why not."""
    with _lock:
        faults: dict[str, str | None] = {name: _fault(name) for name in _LOCAL}
    faults["remote"] = "name a server: remote:http://host:port"
    faults["none"] = None if os.environ.get(DANGER) == "1" else f"it is refused unless {DANGER}=1"
    return faults


def close_all() -> None:
    """Close every shared sandbox; they are opened again when asked for."""
    with _lock:
        for sandbox in _open.values():
            sandbox.close()
        _open.clear()


def _first_that_holds() -> Sandbox:
    for name in _LOCAL:
        if _fault(name) is None:
            return _open[name]
    reasons = "; ".join(f"{name}: {_faults[name]}" for name in _LOCAL)
    raise InvalidInput(
        "sandbox",
        "auto",
        f"no sandbox holds here ({reasons}). Install bubblewrap (apt-get install bubblewrap) and "
        "allow user namespaces, or use a kernel with Landlock (5.13 or later), or name a server: "
        "sandbox='remote:http://host:port'",
    )


def _fault(name: str) -> str | None:
    """What is wrong with a local back-end; when nothing is, it is open afterwards."""
    if _faults.get(name) is not None:
        return _faults[name]
    if name in _open and not _open[name].closed:
        return None
    if name == "bwrap" and shutil.which("bwrap") is None:
        _faults[name] = "bubblewrap is not installed (apt-get install bubblewrap)"
        return _faults[name]
    sandbox = LocalSandbox(_LOCAL[name])
    known = name in _faults  # it was tried before and then closed
    fault = None if known else examine(sandbox)
    _faults[name] = fault
    if fault is None:
        _open[name] = sandbox
    else:
        sandbox.close()
    return fault


def _no_sandbox(dangerous: bool) -> Sandbox:
    if not dangerous and os.environ.get(DANGER) != "1":
        raise InvalidInput(
            "sandbox",
            "none",
            f"programs would run with all your rights; set {DANGER}=1 if you accept that, "
            "or use 'auto'",
        )
    if "none" not in _open or _open["none"].closed:
        _LOG.warning("programs run without a sandbox: they can read, change and send anything")
        _open["none"] = LocalSandbox(launch.NONE)
    return _open["none"]


def _remote(url: str) -> Sandbox:
    if url not in _open or _open[url].closed:
        sandbox = RemoteSandbox(url)
        fault = sandbox.fault()
        if fault is not None:
            raise InvalidInput("sandbox", url, f"the server does not run programs: {fault}")
        _open[url] = sandbox
    return _open[url]


def _after_fork() -> None:
    """The lock may have been held by a thread that does not exist in the child."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_all)
