"""Starting the fork server of a back-end, through its keeper, with a scrubbed environment.

A bare interpreter is sent the code that it runs. Back-ends are `BWRAP`, an empty and read-only
machine with the interpreter in it, and `LANDLOCK`, for containers that forbid namespaces.
"""

from __future__ import annotations

import functools
import marshal
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dare_sandbox import cgroups
from dare_sandbox.inside.system import machine, open_to_all

# Each is loaded after those it imports; the last is run.
KEEPER = ("system", "keeper")
FORK_SERVER = ("system", "rooms", "server")

_LOADER = """
import sys as _sys
from types import ModuleType as _Module
for _name in ("dare_sandbox", "dare_sandbox.inside"):
    _module = _sys.modules[_name] = _Module(_name)
    _module.__path__ = []
for _name, _code in modules:
    _module = _sys.modules["dare_sandbox.inside." + _name] = _Module("dare_sandbox.inside." + _name)
    exec(_code, _module.__dict__)
    setattr(_sys.modules["dare_sandbox.inside"], _name, _module)
_entry = _module.main
for _name in [_name for _name in _sys.modules if _name.split(".")[0] == "dare_sandbox"]:
    del _sys.modules[_name]
_entry(descriptor, config)
"""


@functools.cache
def _compiled(names: tuple[str, ...]) -> tuple[tuple[str, object], ...]:
    folder = resources.files("dare_sandbox.inside")
    return tuple(
        (name, compile((folder / f"{name}.py").read_text("utf-8"), f"<sandbox {name}>", "exec"))
        for name in names
    )


def boot(descriptor: int) -> str:
    """The program text for `python -c`: it reads the rest from a socket, in one packet."""
    return (
        f"import os, marshal; _ = marshal.loads(os.read({descriptor}, 1 << 20)); "
        f"exec(_.pop('loader'), dict(_, descriptor={descriptor}))"
    )


def packet(modules: tuple[str, ...], config: dict[str, object]) -> bytes:
    """What `boot` reads; the `main` of the last module is given the configuration."""
    loader = compile(_LOADER, "<sandbox>", "exec")
    return marshal.dumps({"loader": loader, "modules": _compiled(modules), "config": config})


_SYSTEM = (
    *("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64"),
    *("/nix/store", "/gnu/store", "/etc/ld.so.cache", "/usr/share/zoneinfo"),
)


@dataclass(frozen=True)
class Interpreter:
    """An executable, what must be readable for it, and where its packages are."""

    executable: str
    readable: tuple[str, ...]
    links: tuple[tuple[str, str], ...]  # (target, link), such as usr/lib for /lib
    sites: tuple[str, ...]


def find_interpreter() -> Interpreter:
    """The interpreter that runs now, without its virtual environment, user files or home."""
    given = getattr(sys, "_base_executable", None) or sys.executable
    executable = os.path.realpath(given)
    prefix = os.path.realpath(sys.base_prefix)
    sites = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    wanted = [*_SYSTEM, f"{prefix}/lib", f"{prefix}/lib64", executable, *sites]
    readable: list[str] = []
    links: list[tuple[str, str]] = []
    for path in dict.fromkeys(wanted):
        if not os.path.exists(path):
            continue
        if os.path.islink(path) and path in _SYSTEM:
            links.append((os.readlink(path), path))
        elif not any(Path(path).is_relative_to(seen) for seen in readable):
            readable.append(path)
    return Interpreter(executable, tuple(readable), tuple(links), tuple(sites))


_START_S = 30.0
_LISTENER = 3
# All that a program sees. Hashing without a seed makes its verdict the same every time.
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "USER": "sandbox",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    # Contest answers of more than 4300 digits are honest; that limit is against web requests.
    "PYTHONINTMAXSTRDIGITS": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")


@dataclass(frozen=True)
class Recipe:
    """How a back-end starts: the command around the interpreter, and who does what."""

    mode: str
    wrap: Callable[[Interpreter], list[str]]
    stage: bool  # root shows closed folders to the ordinary user
    drop: bool  # root becomes an ordinary user before the command
    abi: int = 1000  # the newest version of Landlock to use


class Server:
    """A running fork server, as the judge sees it."""

    def __init__(self, recipe: Recipe) -> None:
        parent = cgroups.find()
        self.groups = cgroups.Groups(parent) if parent else None
        python = find_interpreter()
        self._scratch = scratch = "" if recipe.stage else _new_scratch()
        self.socket, listener = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.life, keeper = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        first = boot(_LISTENER)
        plan: dict[str, object] = {
            "command": [*recipe.wrap(python), python.executable, *_FLAGS, "-c", first],
            "environment": ENVIRONMENT,
            "listener": listener.fileno(),
            "drop": recipe.drop,
            "stage": [*python.readable] if recipe.stage else [],
            "stage_at": tempfile.gettempdir(),
            "scratch": scratch,
            "cgroups": self.groups.pattern if self.groups else "",
        }
        config: dict[str, object] = {
            "mode": recipe.mode,
            "arch": machine(),
            "sites": [*python.sites],
            "readable": [*python.readable],
            "scratch": scratch,
            "abi": recipe.abi,
        }
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        with listener, keeper:
            self.process = subprocess.Popen(
                [python.executable, "-I", "-S", "-c", boot(keeper.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(listener.fileno(), keeper.fileno()),
                env={},
                cwd="/",
            )
        with errors:
            try:
                self.life.send(packet(KEEPER, plan))
                self.socket.settimeout(_START_S)
                self.socket.send(packet(FORK_SERVER, config))
                answer = self.socket.recv(4096).decode(errors="replace")
                if answer != "ready":
                    raise OSError(answer or "it ended at once")
            except OSError as error:
                self.close()
                errors.seek(0)
                said = errors.read()[-500:].decode(errors="replace").strip()
                raise OSError(said or str(error)) from None
            except BaseException:
                self.close()
                raise

    def submit(self, message: bytes, files: list[int]) -> None:
        """Ask for one program to be run."""
        socket.send_fds(self.socket, [message], files)

    def close(self) -> None:
        """End the fork server and all that it runs, and wait for it."""
        self.socket.close()
        self.life.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.returncode != 0:
            self._clear_up()

    def _clear_up(self) -> None:
        """Do what the keeper did not live to do; all others end by the closing of their sockets."""
        for attempt in range(40):  # on a busy machine they take their time
            time.sleep(min(0.02 * attempt, 0.2))
            if self._scratch:
                shutil.rmtree(self._scratch, ignore_errors=True)
            if self.groups is None or self.groups.remove():
                return

    def disown(self) -> None:
        """In a forked child: close the copies, and leave the process to its own parent."""
        self.socket.close()
        self.life.close()
        self.process.returncode = 0


def _new_scratch() -> str:
    """A new folder's name; as root, where the users of the sandbox may go."""
    home = tempfile.gettempdir()
    if os.getuid() == 0 and not open_to_all(home):
        home = "/tmp"
    return f"{home}/dare-sandbox-{os.getpid()}-{os.urandom(6).hex()}"


_DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")


def bwrap_command(python: Interpreter) -> list[str]:
    """Everything up to the interpreter; the paths after `--ro-bind` may be staged by the keeper."""
    words = [
        shutil.which("bwrap") or "/usr/bin/bwrap",
        *("--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--hostname", "sandbox", "--clearenv"),
    ]
    for path in python.readable:
        words += ["--ro-bind", path, path]
    for target, link in python.links:
        words += ["--symlink", target, link]
    words += ["--dir", "/dev/shm", "--dir", "/tmp", "--proc", "/proc"]
    for device in _DEVICES:
        words += ["--dev-bind", device, device]
    for target, link in (
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ):
        words += ["--symlink", target, link]
    for name, value in ENVIRONMENT.items():
        words += ["--setenv", name, value]
    return [*words, "--remount-ro", "/", "--chdir", "/tmp", "--"]


BWRAP = Recipe("bwrap", bwrap_command, stage=True, drop=True)


def _nothing(python: Interpreter) -> list[str]:
    """The interpreter is started as it is; each program gives up its rights by itself."""
    return []


LANDLOCK = Recipe("landlock", _nothing, stage=False, drop=False)
NONE = Recipe("none", _nothing, stage=False, drop=False)
