"""A report that follows runs while they write: a small server for this machine alone."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from dare.errors import InvalidInput
from dare.report.document import content, page
from dare.runs.found import find_runs
from dare.runs.reader import read_run, stamp

HOST = "127.0.0.1"
_REST = 2.0
"""Seconds between two readings at least, however often the files change."""


class Follower:
    """The content of the newest reading, and a version that changes with it."""

    def __init__(self, words: Sequence[str], rest: float = _REST) -> None:
        self._words, self._rest = list(words), rest
        self._lock = threading.Lock()
        self._stamp: Any = None
        self._read_at = 0.0
        self.version = 0
        self.error: str | None = None
        self.content: dict[str, Any] = {}
        self._read(*self._look())  # what is broken at the start is the caller's to hear

    def refresh(self) -> None:
        """Read the runs again if their files have changed.

        A reading that fails keeps the last good content and says why.
        """
        with self._lock:
            if time.monotonic() - self._read_at < self._rest:
                return
            try:
                found, now = self._look()
                if now != self._stamp:
                    self._read(found, now)
            except InvalidInput as error:
                if self.error != str(error):
                    self.error = str(error)
                    self.version += 1
                self._read_at = time.monotonic()

    def _look(self) -> tuple[Any, Any]:
        found = find_runs(self._words)
        return found, [(str(one.folder), stamp(one.folder)) for one in found]

    def _read(self, found: Any, now: Any) -> None:
        # The stamp is older than the reading: what is written meanwhile is read again.
        self.content = content([read_run(one) for one in found])
        self._stamp, self.error = now, None
        self._read_at = time.monotonic()
        self.version += 1


def make_server(words: Sequence[str], port: int, rest: float = _REST) -> ThreadingHTTPServer:
    """A server that is bound but does not answer yet; port 0 takes any free one."""
    follower = Follower(words, rest)

    class Handler(_Handler):
        held = follower

    try:
        server = _Server((HOST, port), Handler)
    except OSError as error:
        fix = f"cannot be listened on ({error.strerror or error}); choose another with --port"
        raise InvalidInput("--port", port, fix) from None
    except OverflowError:
        raise InvalidInput("--port", port, "must be 0 to 65535") from None
    server.daemon_threads = True
    return server


class _Server(ThreadingHTTPServer):
    """Quiet about readers who leave in the middle of an answer."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Anything else than a lost connection is a fault, and is told as one."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """`/` is the page, `/content.json` what it shows; `?not=VERSION` waits for another one."""

    held: Follower

    def do_GET(self) -> None:
        """Answer a browser on this machine."""
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in (HOST, "localhost"):  # a foreign site's name that points here
            self._send(403, "text/plain", b"this report is for this machine alone\n")
            return
        path, _, query = self.path.partition("?")
        if path == "/":
            self.held.refresh()
            text = page(self.held.content, live=True)
            self._send(200, "text/html; charset=utf-8", text.encode("utf-8"))
        elif path == "/content.json":
            self._news(parse_qs(query).get("not", [""])[0])
        elif path == "/favicon.ico":
            self._send(204, "image/x-icon", b"")
        else:
            self._send(404, "text/plain", b"there is / and /content.json\n")

    def _news(self, known: str) -> None:
        self.held.refresh()
        if known == str(self.held.version):
            self._send(204, "application/json", b"")
            return
        news = {
            "version": self.held.version,
            "error": self.held.error,
            "content": self.held.content,
        }
        self._send(200, "application/json", json.dumps(news, allow_nan=False).encode("ascii"))

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the page polls every few seconds."""
