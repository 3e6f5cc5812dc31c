"""Packages of an environment that lies in /tmp are there, read-only, and nothing else of /tmp."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dare_sandbox import probe

PROGRAM = """
import os, greeting
print(greeting.WORD)
try:
    open(os.path.join(os.path.dirname(greeting.__file__), "new"), "w")
except OSError:
    print("read-only")
print(os.path.exists({beside!r}))
open("/tmp/mine", "w").write("kept")
print(open("/tmp/mine").read())
"""
JUDGE = """
import sys
sys.path.append({site!r})
from dare_sandbox import Job, open_sandbox
result = open_sandbox({backend!r}).run(Job({program!r}))
sys.stdout.write(result.stdout.decode())
sys.stderr.write(result.stderr.decode())
"""


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
def test_packages_in_tmp_stay(backend: str) -> None:
    reason = probe()[backend]
    if reason is not None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        site = Path(folder) / "site-packages"
        site.mkdir()
        (site / "greeting.py").write_text("WORD = 'hello'\n")
        beside = Path(folder) / "secret"
        beside.write_text("not for you")
        program = PROGRAM.format(beside=str(beside))
        script = JUDGE.format(site=str(site), backend=backend, program=program)
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False
        )
        assert done.stdout.split() == ["hello", "read-only", "False", "kept"], done.stderr
