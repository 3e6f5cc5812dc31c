"""Programs on one or two processes that are forked off a server with the trainer imported.

A new Python spends eight seconds of a core on importing torch, transformers and the trainer, which
is more than most of these programs need. What torchrun itself does is tested where the Slurm
script starts it, in training/test_nodes.py.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, BinaryIO, ClassVar

import pytest

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["dare.training.trainer", "dare.cli", "datasets", "peft"])
_GRACE_S = 30.0  # between the polite and the other end of a process that outlives its fellow


def run(
    *words: str,
    processes: int = 1,
    folder: Path | None = None,
    timeout: float = 1500,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """A script, or -m and a module: on this machine's CPU, as torchrun starts several."""
    given = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    given |= variables or {}
    with TemporaryDirectory() as kept:
        port, ranks = _free_port(), list[BaseProcess]()
        for rank in range(processes):
            mine = given if processes == 1 else {**given, **_told(rank, processes, port)}
            place, files = str(folder or Path.cwd()), [f"{kept}/{stream}{rank}" for stream in "12"]
            ranks.append(_started(words, place, mine, files))
        code = _ended(ranks, time.monotonic() + timeout)
        out, err = (
            "".join(path.read_text() for path in sorted(Path(kept).glob(f"{stream}*")))
            for stream in "12"
        )
        return subprocess.CompletedProcess(words, code, out, err)


def _started(
    words: tuple[str, ...], folder: str, variables: dict[str, str], said: list[str]
) -> BaseProcess:
    one = _SERVER.Process(target=_be, args=(words, folder, variables, said))
    with pytest.MonkeyPatch.context() as here:
        here.setenv("OMP_NUM_THREADS", "1")  # read when the server imports torch
        one.start()
    return one


def _told(rank: int, processes: int, port: int) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
    numbers |= {"LOCAL_WORLD_SIZE": processes}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(one) for name, one in numbers.items()}}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _ended(ranks: list[BaseProcess], deadline: float) -> int:
    """Wait for all, or for the first that fails: the others are ended then, as torchrun does."""
    while running := [one for one in ranks if one.is_alive()]:
        if any(one.exitcode for one in ranks) or time.monotonic() > deadline:
            for one in running:
                one.kill() if _stands_still(one.pid) else one.terminate()
            wait([one.sentinel for one in running], _GRACE_S)
            for one in running:
                one.kill()
        wait([one.sentinel for one in running], 1.0)
    return next((code for one in ranks if (code := one.exitcode)), 0)


def _stands_still(pid: int | None) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


class Started:
    """Stands for a `subprocess.Popen` of `python SCRIPT WORDS` that is waited for."""

    def __init__(self, command: Sequence[str]) -> None:
        given = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._one = _started(tuple(command[1:]), str(Path.cwd()), given, [])

    def wait(self) -> int | None:
        self._one.join()
        return self._one.exitcode


class Forked:
    """Stands for a `subprocess.Popen` of `python -m MODULE WORDS`: a fork of this process, which is
    one of the server's and has one thread that works."""

    _stdins: ClassVar[list[BinaryIO]] = []

    def __init__(
        self, command: Sequence[str], *, stdout: IO[bytes], env: dict[str, str], **_: Any
    ) -> None:
        self.returncode: int | None = None
        read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                for one in (*self._stdins, os.fdopen(write, "wb")):
                    one.close()  # they end with their study, whoever else goes on
                os.setsid()
                for number, source in enumerate((read, stdout.fileno(), stdout.fileno())):
                    os.dup2(source, number)
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                _be(tuple(command[command.index("-m") :]), str(Path.cwd()), env, [])
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(read)
        self.stdin = os.fdopen(write, "wb")
        self._stdins.append(self.stdin)

    def poll(self) -> int | None:
        if self.returncode is None:
            gone, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if gone else None
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)


def _be(words: tuple[str, ...], folder: str, variables: dict[str, str], said: list[str]) -> None:
    """Become `python WORDS`, in the server's child."""
    gc.freeze()  # else the first collection copies every page that is shared with the server
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    for number, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.path[:0] = [part for part in variables.get("PYTHONPATH", "").split(os.pathsep) if part]
    named, sys.argv = (words[1], list(words[1:])) if words[0] == "-m" else ("", list(words))
    sys.path.insert(0, folder if named else str(Path(words[0]).parent))
    try:
        if named:
            runpy.run_module(named, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out
        sys.stdout.flush()
        sys.stderr.flush()
