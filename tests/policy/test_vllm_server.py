"""What a server may answer that is no vLLM, or one that is busy or dies: a stand-in answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from dare.errors import InvalidInput
from dare.policy.generate import GeneratorFailed
from dare.policy.policy import Policy
from dare.policy.vllm_engine import VllmSettings, Wanted
from dare.policy.vllm_server import Served
from dare_decoder import Sampling

SERVED = {"dtype": "torch.float32", "logprobs_mode": "processed_logprobs"}


class StandIn:
    """A server that answers what `answers` has for a path: JSON, or bytes as they are."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "/health": None,
            "/version": {"version": "0.30.0"},
            "/v1/models": {"data": [{"id": "it"}]},
            "/server_info?config_format=json": {"vllm_config": {"model_config": SERVED}},
            "/collective_rpc": {"results": [None]},
            "/reset_prefix_cache": {"success": True},
        }
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                answer = outer.answers.get(self.path, 404)
                answer = answer() if callable(answer) else answer
                if isinstance(answer, int):
                    self.send_error(answer)
                    return
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(200)
                # Of bytes more are announced than come: the server dies in between.
                self.send_header("Content-Length", str(len(body) + 9 * isinstance(answer, bytes)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        # Waits for its threads when closed: no socket outlives a test.
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.http.daemon_threads = False
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def served(self, folder: Path, limit: float = 2.0) -> Served:
        found = {"server_url": self.url, "server_timeout": limit, "sync_folder": str(folder)}
        settings = VllmSettings(mode="server", **found)  # type: ignore[arg-type]
        return Served(tiny.policy(), settings, dtype=torch.float32)


@pytest.fixture
def server() -> Iterator[StandIn]:
    made = StandIn()
    yield made
    made.http.shutdown()
    made.http.server_close()


def after(times: int, then: Any, before: Any) -> Callable[[], Any]:
    """An answer that changes after so many."""
    left = iter([before] * times)
    return lambda: next(left, then)


WEIGHTS = [("a", torch.ones(2))]


def test_its_cache_of_prompts_is_asked_for_until_it_is_empty(
    server: StandIn, tmp_path: Path
) -> None:
    made = server.served(tmp_path)
    server.answers["/reset_prefix_cache"] = after(3, {"success": True}, {"success": False})
    made.load(WEIGHTS)
    assert server.asked.count("/reset_prefix_cache") == 4
    server.answers["/reset_prefix_cache"] = None  # of a version that does not tell
    made.load(WEIGHTS)


def test_a_cache_of_the_old_weights_that_stays_in_use_ends_the_run(
    server: StandIn, tmp_path: Path
) -> None:
    made = server.served(tmp_path, limit=0.5)
    server.answers["/reset_prefix_cache"] = {"success": False}
    with pytest.raises(GeneratorFailed, match=r"old weights is in use for 0\.5 s"):
        made.load(WEIGHTS)


@pytest.mark.parametrize("answer", [b'{"success"', b"", 500], ids=["half", "nothing", "error"])
def test_a_server_that_dies_in_an_answer_is_a_lost_one(
    answer: Any, server: StandIn, tmp_path: Path
) -> None:
    made = server.served(tmp_path)
    server.answers["/reset_prefix_cache"] = answer
    with pytest.raises(GeneratorFailed, match="failed taking new weights") as caught:
        made.load(WEIGHTS)
    assert "\n" not in str(caught.value)


def test_an_answer_that_is_no_json_is_a_lost_server(server: StandIn, tmp_path: Path) -> None:
    made = server.served(tmp_path)
    made._request = lambda *_: b"<html>"  # type: ignore[method-assign]
    with pytest.raises(GeneratorFailed, match="failed taking new weights"):
        made.load(WEIGHTS)


def test_a_server_that_dies_while_its_tokens_are_counted_is_given_up(
    server: StandIn, tmp_path: Path
) -> None:
    made, held = server.served(tmp_path, limit=0.5), threading.Event()
    server.answers["/metrics"] = b"vllm:generation"
    server.answers["/v1/completions"] = lambda: held.wait(30) and 503
    try:
        with pytest.raises(GeneratorFailed, match=r"makes no tokens for 0\.5 s"):
            made.draw([Wanted([1, 2], 3, 0)], Sampling(1.0, 1.0, 0), [1], False)
    finally:
        held.set()


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/version", {"release": "0.30.0"}),
        ("/version", None),
        ("/version", {"version": "0.20.2"}),
        ("/version", {"version": "of today"}),
        ("/v1/models", {"data": []}),
        ("/server_info?config_format=json", {"vllm_config": "a text, as older versions have it"}),
        ("/server_info?config_format=json", {"vllm_config": {}}),
    ],
)
def test_a_server_of_another_version_is_told_which_is_wanted(
    path: str, answer: Any, server: StandIn, tmp_path: Path
) -> None:
    server.answers[path] = answer
    with pytest.raises(InvalidInput, match=r"fit.*pip install 'vllm>=0\.26,<0\.32'"):
        server.served(tmp_path)


def test_a_completion_without_tokens_is_of_another_version(server: StandIn, tmp_path: Path) -> None:
    made = server.served(tmp_path)
    server.answers["/v1/completions"] = {"choices": [{"text": "4"}]}
    with pytest.raises(InvalidInput, match=r"no 'token_ids'.*pip install"):
        made.draw([Wanted([1, 2], 3, 0)], Sampling(1.0, 1.0, 0), [1], False)


def test_an_address_without_http_is_refused_before_anything_is_asked() -> None:
    settings = VllmSettings(mode="server", server_url="node:8000")
    with pytest.raises(InvalidInput, match="like http://host:8000"):
        Policy(tiny.policy(), tiny.tokenizer(), generator="vllm", engine=settings)
