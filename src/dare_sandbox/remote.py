"""A sandbox on another machine, reached by SandboxFusion's HTTP protocol (`POST /run_code`)."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from dare_errors import InvalidInput
from dare_sandbox.base import Ended, Execution, Job, Limits, LostRun, Running, lost, out_of_memory

_EXTRA_S = 15.0  # for the way there and back, and for waiting in the server's queue


class RemoteSandbox:
    """Sends programs to a server. Isolation is the server's; its failures are `lost`."""

    name = "remote"
    channels = False

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidInput("sandbox", url, "a server is named by its http(s) address")
        self.url = url.rstrip("/").removesuffix("/run_code")
        self.closed = False

    def start(self, job: Job) -> Running:
        """Send a program; the answer is read by `wait`. There is no channel to another machine."""
        if self.closed:
            return LostRun("the sandbox has been closed")
        if job.channel:
            return LostRun("a remote sandbox has no channel to its programs")
        return RemoteRun(self, job)

    def run(self, job: Job) -> Execution:
        """Start a program and wait for it."""
        if self.closed or job.channel:
            return self.start(job).wait()
        return self.ask(job)

    def close(self) -> None:
        """Send nothing more."""
        self.closed = True

    def fault(self) -> str | None:
        """None when the server runs a small program; otherwise what goes wrong."""
        result = self.run(Job("print(int(input()) * 2)", b"21\n"))
        if result.ended is Ended.LOST:
            return result.detail
        return None if result.stdout.strip() == b"42" else f"it answered {result.stdout[:80]!r}"

    def ask(self, job: Job) -> Execution:
        """One request and its answer."""
        started = time.monotonic()
        try:
            answer = self._post(job)
            return _understand(answer, job.limits, time.monotonic() - started)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return lost(f"{self.url}: {type(error).__name__}: {error}")

    def _post(self, job: Job) -> dict[str, Any]:
        body = {
            "code": job.source,
            "language": "python",
            "stdin": job.stdin.decode(),
            "run_timeout": job.limits.wall_s,
            "memory_limit_MB": job.limits.memory_mb,
        }
        request = urllib.request.Request(
            f"{self.url}/run_code",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        most = 8 * job.limits.output_bytes + (1 << 20)  # JSON may write one byte as six
        try:
            with urllib.request.urlopen(request, timeout=job.limits.wall_s + _EXTRA_S) as reply:
                return dict(json.loads(reply.read(most)))
        except urllib.error.HTTPError as error:
            with error:  # it is the reply too, and holds the connection
                raise OSError(f"HTTP status {error.code}") from None


def _understand(answer: dict[str, Any], limits: Limits, wall_s: float) -> Execution:
    """The server's answer as an `Execution`."""
    result = answer.get("run_result")
    if answer["status"] == "SandboxError" or result is None:
        return lost(str(answer.get("message") or answer["status"]))
    stdout = (result.get("stdout") or "").encode("utf-8", "surrogateescape")
    stderr = (result.get("stderr") or "").encode("utf-8", "surrogateescape")
    code = int(result.get("return_code") or 0)
    if result["status"] == "TimeLimitExceeded":
        ended = Ended.TIME
    elif result["status"] != "Finished":
        return lost(str(answer.get("message") or result["status"]))
    elif len(stdout) + len(stderr) > limits.output_bytes:
        ended = Ended.OUTPUT
    elif out_of_memory(code, stderr):
        ended = Ended.MEMORY
    else:
        ended = Ended.SIGNALLED if code < 0 else Ended.EXITED
    stdout = stdout[: limits.output_bytes]
    stderr = stderr[: limits.output_bytes - len(stdout)]
    spent = float(result.get("execution_time") or wall_s)
    return Execution(ended, abs(code), stdout, stderr, spent, spent, 0.0, "")


class RemoteRun:
    """A program sent to the server."""

    channel: socket.socket | None = None

    def __init__(self, sandbox: RemoteSandbox, job: Job) -> None:
        self._result: Execution | None = None
        self._killed = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(sandbox, job), daemon=True)
        self._thread.start()

    def _work(self, sandbox: RemoteSandbox, job: Job) -> None:
        self._result = sandbox.ask(job)
        self._done.set()

    def kill(self) -> None:
        """Stop waiting; the server ends the program by its own clock."""
        self._killed.set()
        self._done.set()

    def waited_s(self) -> float:
        """The server's clock is its own affair."""
        return 0.0

    def wait(self) -> Execution:
        """Until the server answers."""
        self._done.wait()
        if self._result is not None:
            return self._result
        return Execution(Ended.SIGNALLED, 9, b"", b"", 0.0, 0.0, 0.0, "killed by the caller")
