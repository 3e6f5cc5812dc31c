"""Starting the fork server of a back-end, through its keeper, with a scrubbed environment."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

from dare.sandbox import bundle, cgroups, interpreter
from dare.sandbox.inside.paths import open_to_all
from dare.sandbox.inside.syscalls import machine

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
    wrap: Callable[[interpreter.Interpreter], list[str]]
    stage: bool  # root shows closed folders to the ordinary user
    drop: bool  # root becomes an ordinary user before the command
    abi: int = 1000  # the newest version of Landlock to use


class Server:
    """A running fork server, as the judge sees it."""

    def __init__(self, recipe: Recipe) -> None:
        parent = cgroups.find()
        self.groups = cgroups.Groups(parent) if parent else None
        python = interpreter.find()
        self._scratch = scratch = "" if recipe.stage else _new_scratch()
        self.socket, listener = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.life, keeper = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        boot = bundle.boot(_LISTENER)
        plan: dict[str, object] = {
            "command": [*recipe.wrap(python), python.executable, *_FLAGS, "-c", boot],
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
                [python.executable, "-I", "-S", "-c", bundle.boot(keeper.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(listener.fileno(), keeper.fileno()),
                env={},
                cwd="/",
            )
        with errors:
            try:
                self.life.send(bundle.packet(bundle.KEEPER, plan))
                self.socket.settimeout(_START_S)
                self.socket.send(bundle.packet(bundle.ZYGOTE, config))
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
