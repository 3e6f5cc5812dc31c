"""Honest programs run as in any Python, hostile ones get nothing: as root and as anyone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import honest_failures, hostile_failures

import dare
import ordinary
from dare_sandbox import Ended, Job, Limits, Sandbox, probe
from dare_sandbox.inside import system


def test_honest_programs_run(sandbox: Sandbox) -> None:
    assert honest_failures(sandbox) == []


def test_hostile_programs_are_held(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "SECRET")
    assert hostile_failures(sandbox, str(tmp_path)) == []


def _become_ordinary() -> None:
    """In the child: show the interpreter where an ordinary user may go, then be one."""
    prefix = os.path.realpath(sys.base_prefix)
    if not system.open_to_all(prefix):
        closed = next(p for p in reversed(Path(prefix).parents) if not p.stat().st_mode & 1)
        system.unshare(0x00020000)
        system.mount("none", "/", None, 16384 | (1 << 18))
        inside = os.open(prefix, os.O_PATH)
        system.mount("tmpfs", str(closed), "tmpfs", 0, "size=1m,mode=755")
        os.makedirs(prefix, 0o755)
        system.mount(f"/proc/self/fd/{inside}", prefix, None, 4096 | 16384)
    os.setgroups([])
    os.setresgid(ordinary.UID, ordinary.UID, ordinary.UID)
    os.setresuid(ordinary.UID, ordinary.UID, ordinary.UID)


@pytest.mark.skipif(os.getuid() != 0, reason="this test session is an ordinary user already")
@pytest.mark.parametrize("backend", ["bwrap", "landlock", "landlock:1"])
def test_all_programs_as_an_ordinary_user(backend: str) -> None:
    reason = probe()[backend.partition(":")[0]]
    if reason is not None:
        pytest.skip(reason)
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("programs.py")), backend],
        cwd="/",
        env={
            "PATH": "/usr/bin:/bin",
            "SECRET_TOKEN": "SECRET",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(Path(dare.__file__).parents[1]),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_become_ordinary,
    )
    output, errors = process.communicate(timeout=1500)
    assert process.returncode == 0, errors.decode()
    assert json.loads(output) == []


def test_nothing_is_carried_over(sandbox: Sandbox) -> None:
    leave = """
import builtins, json, os, sys
for path in ("kept", "/tmp/kept", "/dev/shm/kept", os.path.expanduser("~/kept")):
    try: open(path, "w").write("kept")
    except OSError: pass
builtins.kept = json.kept = sys.kept = 1
os.environ["KEPT"] = "1"
json.loads = None
print([name for name in os.listdir(".") if os.path.isfile(name)])
"""
    look = """
import builtins, json, os, sys
# Files only: an environment that lies in /tmp is seen there, as a folder.
print([name for name in os.listdir(".") if os.path.isfile(name)],
      [os.path.exists(p) for p in ("/tmp/kept", "/dev/shm/kept")],
      hasattr(builtins, "kept"), hasattr(json, "kept"), "KEPT" in os.environ, json.loads("1"))
"""
    assert sandbox.run(Job(leave)).stdout == b"['kept']\n"
    assert sandbox.run(Job(look)).stdout == b"[] [False, False] False False False 1\n"


@pytest.mark.parametrize(
    ("source", "ended", "code", "stdout", "stderr"),
    [
        ("print('x', end='')", Ended.EXITED, 0, b"x", b""),
        ("import sys; sys.exit(7)", Ended.EXITED, 7, b"", b""),
        ("import sys; print(sys.argv); sys.exit('why')", Ended.EXITED, 1, b"['']\n", b"why\n"),
        ("1 / 0", Ended.EXITED, 1, b"", b"ZeroDivisionError: division by zero\n"),
        ("x = (", Ended.EXITED, 1, b"", b"SyntaxError: '(' was never closed\n"),
        ("a\x00b", Ended.EXITED, 1, b"", b"source code string cannot contain null bytes\n"),
        ("'\udc80'", Ended.EXITED, 1, b"", b""),
        ("import os; os.abort()", Ended.SIGNALLED, 6, b"", b""),
        ("x = bytearray(1 << 50)", Ended.MEMORY, 1, b"", b"MemoryError\n"),
    ],
)
def test_a_program_ends_as_python_would(
    sandbox: Sandbox, source: str, ended: Ended, code: int, stdout: bytes, stderr: bytes
) -> None:
    result = sandbox.run(Job(source))
    assert (result.ended, result.code, result.stdout) == (ended, code, stdout)
    assert result.stderr.endswith(stderr)
    assert b"sandbox" not in result.stderr  # its own frames are not the program's business


def test_figures_are_right(sandbox: Sandbox) -> None:
    source = "import time\nx = b'x' * (100 << 20)\nt = time.process_time()\n"
    source += "while time.process_time() < 0.3: pass\ntime.sleep(0.2)"
    result = sandbox.run(Job(source, limits=Limits(memory_mb=256)))
    assert 0.25 < result.cpu_s < 1.0
    assert result.wall_s > 0.45
    assert 90 < result.peak_mb < 160


def test_output_is_kept_up_to_its_limit(sandbox: Sandbox) -> None:
    result = sandbox.run(Job("print('x' * 5000)", limits=Limits(output_bytes=1000)))
    assert result.ended is Ended.OUTPUT
    assert result.stdout == b"x" * 1000
    flood = sandbox.run(Job("while True: print('x' * 999)"))
    assert (flood.ended, len(flood.stdout)) == (Ended.OUTPUT, 1 << 16)  # a sample is enough
    large = sandbox.run(Job("print('0123456789' * 10**6)"))
    assert large.stdout == b"0123456789" * 10**6 + b"\n"
    full = sandbox.run(Job("print('x' * 999)", limits=Limits(output_bytes=1000)))
    assert (full.ended, len(full.stdout)) == (Ended.EXITED, 1000)
