"""The command line of bubblewrap: an empty, read-only machine with the interpreter in it."""

from __future__ import annotations

import shutil

from dare.sandbox.interpreter import Interpreter
from dare.sandbox.launch import ENVIRONMENT, Recipe

_DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")


def command(python: Interpreter) -> list[str]:
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


RECIPE = Recipe("bwrap", command, stage=True, drop=True)
