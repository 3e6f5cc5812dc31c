"""`dare report`, called as a user calls it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from dare import cli


@pytest.fixture
def dare(monkeypatch, capsys):
    """Runs `dare ARGS` in this process: (exit code, stdout, stderr)."""

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dare", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def test_the_report_lands_in_the_run_folder(dare, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(run, folder)
    code, out, err = dare("report", folder)
    assert (code, err) == (0, "")
    assert out.startswith(f"wrote {folder / 'report.html'} (1 run(s), ")
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "http://" not in text.split("<script")[0]  # nothing to fetch in the head
    assert "connect-src 'none'" in text
    assert not list(folder.glob(".*"))


def test_several_runs_land_where_one_stands(dare, run: Path, tmp_path, monkeypatch) -> None:
    for name in ("a", "b"):
        shutil.copytree(run, tmp_path / "in" / name)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, out, _ = dare("report", f"x={tmp_path / 'in' / 'a'}", f"y={tmp_path / 'in' / 'b'}")
    assert code == 0
    assert "2 run(s)" in out
    assert (tmp_path / "here" / "runs.html").stat().st_size > 10**6
    assert dare("report", tmp_path / "in")[0] == 0
    assert (tmp_path / "in" / "runs.html").is_file()
    assert dare("report", tmp_path / "in", "--out", tmp_path / "deep" / "x.html")[0] == 0
    assert (tmp_path / "deep" / "x.html").is_file()


def test_what_cannot_be_reported_is_one_line_and_leaves_nothing(dare, run, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    with open(broken / "samples.jsonl", "a") as file:
        file.write("{oops}\n")
    count = len((broken / "samples.jsonl").read_text().splitlines())
    for words, message in (
        ([tmp_path / "none"], "there is no such folder"),
        ([tmp_path / "empty"], "holds no run"),
        ([run, run], "is named twice"),
        ([broken], f"samples.jsonl': line {count} is not JSON"),
        ([run, "--out", tmp_path / "empty"], "must end in .html"),
        ([run, "--out", broken / "samples.jsonl" / "x.html"], "cannot be written"),
        ([run, "--port", 1], "goes with --serve"),
        ([run, "--serve", "--out", "x.html"], "not with --serve"),
    ):
        code, out, err = dare("report", *words)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    assert not list(tmp_path.rglob("*.html"))
    assert not list(tmp_path.rglob("*.tmp"))
    (broken / "config.yaml").write_text("a: [\n")
    code, _, err = dare("report", broken)
    assert code == 2
    assert "config.yaml" in err


def test_serve_answers_until_ctrl_c(run: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "dare", "report", str(run), "--serve", "--port", str(port)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # A background job starts with Ctrl-C ignored; a terminal does not.
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert server.stdout is not None
    assert f"http://127.0.0.1:{port}/" in server.stdout.readline()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=600) as answer:
        assert b'data-live="yes"' in answer.read(2000)
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert again.returncode == 2
    assert f"--port = {port}" in again.stderr
    server.send_signal(signal.SIGINT)
    _, err = server.communicate(timeout=600)
    assert (server.returncode, err) == (0, "")
