"""No hostile program passes, gets out or stays behind; no honest one is turned away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ordinary as user
from dare_sandbox.opening import probe

RUNNER = Path(__file__).with_name("run_corpus.py")
SANDBOXES = ("bwrap", "landlock")


def as_ordinary_user(command: list[str]) -> list[str]:
    """The command as a user without rights, who can still reach the interpreter."""
    drop = ["setpriv", f"--reuid={user.UID}", f"--regid={user.UID}", "--clear-groups"]
    drop += ["--inh-caps=-all", "env", "HOME=/tmp"]
    prefix = Path(sys.base_prefix).resolve()
    closed = [folder for folder in prefix.parents if not folder.stat().st_mode & 0o001]
    if not closed:
        return [*drop, *command]
    # In a mount namespace of its own, a folder takes the place of the one that is closed.
    script = (
        'mount -t tmpfs tmpfs /mnt && mkdir /mnt/keep && mount --bind "$1" /mnt/keep && '
        'mount -t tmpfs -o mode=755 tmpfs "$2" && mkdir -p "$1" && '
        'mount --bind /mnt/keep "$1" && cd "$3" && shift 3 && exec "$@"'
    )
    words = ["unshare", "--mount", "sh", "-ec", script, "sh", str(prefix), str(closed[-1])]
    return [*words, str(RUNNER.parent), *drop, *command]


def corpus(sandbox: str, ordinary: bool) -> list[str] | str:
    """The command that runs the corpus; or why there is none."""
    fault = probe()[sandbox]
    if fault is not None:
        return f"{sandbox}: {fault}"
    command = [sys.executable, str(RUNNER), sandbox]
    if ordinary:
        if os.getuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
            return "needs root, setpriv and unshare to become another user"
        command = as_ordinary_user(command)
        ready = subprocess.run([*command[:-2], "-c", "import dare"], capture_output=True)
        if ready.returncode:
            return f"another user cannot run Python here: {ready.stderr.decode()[-200:]}"
    return command


Started = dict[tuple[str, bool], subprocess.Popen[str] | str]


@pytest.fixture(scope="module")
def started() -> Iterator[Started]:
    """All back-ends and users at once: most of the corpus waits for a limit.

    What a function answers is the judge's affair and not the user's: on each back-end one of the
    two users does without those programs, on bwrap this one and on landlock the ordinary one.
    """
    runs = Started()
    for sandbox, without in zip(SANDBOXES, (False, True), strict=True):
        commands = {ordinary: corpus(sandbox, ordinary) for ordinary in (False, True)}
        both = not any(isinstance(command, str) for command in commands.values())
        for ordinary, command in commands.items():
            if isinstance(command, str):
                runs[sandbox, ordinary] = command
                continue
            words = ["hostile_function"] if both and ordinary is without else []
            # What they log goes where ours goes: a pipe that is read late would stop them.
            runs[sandbox, ordinary] = subprocess.Popen(
                [*command, *words], stdout=subprocess.PIPE, text=True
            )
    yield runs
    for run in runs.values():
        if not isinstance(run, str):
            run.kill()
            run.communicate()


@pytest.mark.parametrize("ordinary", [False, True], ids=["this-user", "ordinary-user"])
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_corpus(sandbox: str, ordinary: bool, started: Started) -> None:
    run = started[sandbox, ordinary]
    if isinstance(run, str):
        pytest.skip(run)
    output, _ = run.communicate(timeout=1500)
    assert run.returncode == 0
    found = json.loads(output.splitlines()[-1])
    assert found["problems"] == []
    assert found["hostile"] >= 60
    assert found["honest"] >= 25
    assert not ordinary or found["user"] == user.UID
