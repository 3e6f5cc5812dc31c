r"""A worker of the tests' own, for what a pool does whatever its workers know: it starts at once.

It takes the time that it is told to, and knows the right answers of the few golds in `RIGHT`.
"""

from __future__ import annotations

import time
from typing import Any

from dare_verify.pool_server import Handler, serve

RIGHT = {r"2\sqrt{2}": r"\sqrt{8}", "2^{1/2}": r"\sqrt{2}"}


def handle(request: dict[str, Any]) -> bool:
    """Work for `spin` seconds, sleep for `sleep` seconds, compare."""
    end = time.process_time() + request.get("spin", 0.0)
    while time.process_time() < end:
        pass
    time.sleep(request.get("sleep", 0.0))
    return bool(request["answer"] == RIGHT[request["gold"]])


def load() -> Handler:
    """There is nothing to import."""
    return handle


if __name__ == "__main__":
    serve(load)
