"""A server that speaks SandboxFusion's protocol, played by a small one on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dare.errors import InvalidInput
from dare_sandbox import Ended, Job, Limits, open_sandbox
from dare_sandbox.remote import RemoteSandbox


def _finished(stdout: str = "", stderr: str = "", code: int = 0, **more: object) -> dict[str, Any]:
    run = {"status": "Finished", "execution_time": 0.25, "return_code": code}
    result = {**run, "stdout": stdout, "stderr": stderr, **more}
    return {"status": "Success" if code == 0 else "Failed", "message": "", "run_result": result}


ANSWERS: dict[str, tuple[int, Any]] = {
    "fail": (200, _finished(stderr="ZeroDivisionError\n", code=1)),
    "signal": (200, _finished(code=-11)),
    "slow": (200, _finished(status="TimeLimitExceeded", return_code=None)),
    "memory": (200, _finished(stderr="Traceback\nMemoryError\n", code=1)),
    "long": (200, _finished(stdout="x" * 5000)),
    "error": (200, _finished(status="Error")),
    "broken": (200, {"status": "SandboxError", "message": "no worker", "run_result": None}),
    "busy": (503, {}),
    "nonsense": (200, "what?"),
    "empty": (200, {}),
}


class _Handler(BaseHTTPRequestHandler):
    seen: dict[str, Any]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen = body
        echo = str(int(body["stdin"] or 0) * 2) + "\n"
        status, answer = ANSWERS.get(body["code"], (200, _finished(echo)))
        if self.path != "/run_code":
            status = 404
        payload = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_program_is_sent_and_answered(url: str) -> None:
    sandbox = open_sandbox(f"remote:{url}")
    assert sandbox is open_sandbox(url)
    result = sandbox.start(Job("anything", b"4", Limits(wall_s=3.0, memory_mb=100))).wait()
    assert (result.ended, result.code, result.stdout) == (Ended.EXITED, 0, b"8\n")
    assert result.wall_s == 0.25
    assert _Handler.seen == {
        **{"code": "anything", "language": "python", "stdin": "4"},
        **{"run_timeout": 3.0, "memory_limit_MB": 100},
    }


@pytest.mark.parametrize(
    ("code", "ended", "status"),
    [
        ("fail", Ended.EXITED, 1),
        ("signal", Ended.SIGNALLED, 11),
        ("slow", Ended.TIME, 0),
        ("memory", Ended.MEMORY, 1),
        ("long", Ended.OUTPUT, 0),
        ("error", Ended.LOST, 0),
        ("broken", Ended.LOST, 0),
        ("busy", Ended.LOST, 0),
        ("nonsense", Ended.LOST, 0),
        ("empty", Ended.LOST, 0),
    ],
)
def test_every_kind_of_answer(url: str, code: str, ended: Ended, status: int) -> None:
    result = RemoteSandbox(url).run(Job(code, limits=Limits(output_bytes=1000)))
    assert (result.ended, result.code) == (ended, status)
    assert len(result.stdout) <= 1000
    assert bool(result.detail) == (ended is Ended.LOST)


def test_what_cannot_be_sent_is_lost(url: str) -> None:
    sandbox = RemoteSandbox(url)
    assert sandbox.run(Job("", b"\xff")).ended is Ended.LOST
    assert sandbox.start(Job("", channel=True)).wait().ended is Ended.LOST
    sandbox.close()
    assert sandbox.run(Job("")).ended is Ended.LOST


def test_a_server_that_is_not_there() -> None:
    assert RemoteSandbox("http://127.0.0.1:9").run(Job("")).ended is Ended.LOST
    with pytest.raises(InvalidInput, match="does not run programs"):
        open_sandbox("http://127.0.0.1:9")
    with pytest.raises(InvalidInput, match="http"):
        open_sandbox("remote:somewhere")
