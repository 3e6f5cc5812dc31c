"""A vLLM server as the engine: requests by HTTP, weights by files that both sides see.

TRL's client is not used: it sends weights by NCCL alone, waits for ever for a server that froze,
and has one budget and one seed for all requests.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dare.errors import InvalidInput, first_line, require
from dare.policy.generate import GeneratorFailed
from dare.policy.vllm_engine import (
    INSTALL,
    Drawn,
    VllmSettings,
    Wanted,
    check_version,
    options_of,
    world,
)
from dare_decoder import Sampling
from dare_decoder.model import without_adapters

_AT_ONCE = 256  # requests that a process has under way; the server queues what it has no room for
_FOLDER = ".vllm-weights"
_START = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --dtype {dtype} --logprobs-mode processed_logprobs"
)
_SIZES = {
    "vocab_size": r"org_vocab_size=(\d+)",
    "hidden_size": r"embedding_dim=(\d+)",
    "num_hidden_layers": r"\(0-\d+\): (\d+) x ",
}
_BROKEN = (OSError, http.client.HTTPException, ValueError)
"""Refused, reset, timed out, an answer that is an error, one that broke off or that is no JSON."""
_COUNTED = re.compile(r"^vllm:(?:prompt|generation)_tokens_total\S* (\S+)$", re.MULTILINE)


class Served:
    """A server that has the policy's model. Of several processes the first sends the weights."""

    def __init__(self, model: Any, settings: VllmSettings, *, dtype: torch.dtype) -> None:
        self._settings, self._url, self._dtype = settings, settings.server_url, dtype
        self._how = _START.format(dtype=str(dtype).removeprefix("torch."))
        self._folder = Path(settings.sync_folder or ".").resolve() / _FOLDER
        rank, processes = world()
        self._several, self._sends = processes > 1, rank == 0
        self._wait_for_it()
        check_version(str(self._told(self._get("/version"), "version")), "vllm")
        self._name = str(self._told(self._get("/v1/models"), "data", 0, "id"))
        self._check(model)

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Leave the weights in a folder, and have the server read it."""
        if self._sends:
            new = self._folder.with_name(f"{_FOLDER}-new")
            for old in (new, self._folder):
                shutil.rmtree(old, ignore_errors=True)
            new.mkdir(parents=True)
            held = {name: one.to("cpu", self._dtype).contiguous() for name, one in weights}
            save_file(held, new / "model.safetensors", metadata={"format": "pt"})
            new.rename(self._folder)
            path = {"weights_path": str(self._folder)}
            call = {"method": "reload_weights", "kwargs": path, "timeout": self._limit}
            self._post("/collective_rpc", call, "taking new weights")
            self._forget_prompts()
        if self._several:
            torch.distributed.barrier()

    def draw(
        self, wanted: Sequence[Wanted], sampling: Sampling, ends: Sequence[int], logprobs: bool
    ) -> list[Drawn]:
        """One response for each, many at a time."""
        same = options_of(sampling, ends, logprobs)
        asked = [
            {"prompt": one.prompt, "max_tokens": one.max_tokens, "seed": one.seed, **same}
            for one in wanted
        ]
        told = ("logprobs", "token_logprobs")
        return [
            Drawn(self._told(choice, "token_ids"), self._told(choice, *told) if logprobs else None)
            for choice in self._complete(asked, "generating")
        ]

    def read(self, texts: Sequence[list[int]]) -> list[tuple[list[int], list[float]]]:
        """Log-probs of the tokens of these texts."""
        more = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        choices = self._complete([{"prompt": text, **more} for text in texts], "reading")
        found = []
        for text, choice in zip(texts, choices, strict=True):
            at_each = zip(self._told(choice, "prompt_logprobs")[1:], text[1:], strict=True)
            found.append(
                (text, [float(self._told(at, str(token), "logprob")) for at, token in at_each])
            )
        return found

    def sleep(self) -> None:
        """Its memory is its own."""

    def close(self) -> None:
        """It runs on; the folder of weights is not needed any more."""
        if self._sends:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _forget_prompts(self) -> None:
        """Empty its cache of prompts, which is of the old weights. While a request holds a part of
        it, such as one that an ended run left behind, the server does not, and says so with 200."""
        end = time.monotonic() + self._limit
        while True:
            told = self._post("/reset_prefix_cache", {}, "taking new weights")
            if not isinstance(told, dict) or told.get("success", True):  # old versions do not tell
                return
            if time.monotonic() > end:
                why = f"a cache of prompts of the old weights is in use for {self._limit:g} s "
                raise self._lost(f"{why}(vllm_server_timeout)", "taking new weights")
            time.sleep(min(1.0, self._limit / 10))

    # ---- what it is ----

    def _wait_for_it(self) -> None:
        """It may still be starting."""
        end = time.monotonic() + self._limit
        while True:
            try:
                self._get("/health")
                return
            except GeneratorFailed as error:
                if time.monotonic() > end:
                    fix = f"no vLLM server answers there within {self._limit:g} s "
                    fix += f"(vllm_server_timeout); start one: {self._how}"
                    raise InvalidInput("vllm_server_base_url", self._url, fix) from error
            time.sleep(min(2.0, self._limit / 10))

    def _check(self, model: Any) -> None:
        """That it serves this model, in this dtype, and lets its weights be replaced."""
        try:
            info = self._get("/server_info?config_format=json")
        except GeneratorFailed as error:
            fix = f"the server does not let its weights be replaced; start it so: {self._how}"
            raise InvalidInput("vllm_server_base_url", self._url, fix) from error
        served = self._told(info, "vllm_config", "model_config")
        for size, ours, theirs in self._differs(model):
            fix = f"the server serves another model, {self._name}: its {size} is {theirs}, the "
            raise InvalidInput("vllm_server_base_url", self._url, f"{fix}policy's {ours}")
        for name, wanted in (
            ("dtype", str(self._dtype)),
            *([("logprobs_mode", "processed_logprobs")] if self._settings.logprobs else []),
        ):
            its = str(served.get(name, wanted))
            fix = f"the server has {name} {its}, {wanted} is needed; start it so: {self._how}"
            same = its.rpartition(".")[2] == wanted.rpartition(".")[2]
            require(same, "vllm_server_base_url", self._url, fix)

    def _told(self, answer: Any, *path: str | int) -> Any:
        """What lies there in an answer of a version that fits."""
        for key in path:
            try:
                answer = answer[key]
            except (LookupError, TypeError) as error:
                fix = f"its answer has no {key!r}: no vLLM of a version that fits; {INSTALL}"
                raise InvalidInput("vllm_server_base_url", self._url, fix) from error
        return answer

    def _differs(self, model: Any) -> list[tuple[str, int, int]]:
        """Sizes that the server's model and ours do not share, as far as it shows its layers; the
        numbers of the first transfer say the rest."""
        try:
            told = self._post("/collective_rpc", {"method": "get_model_inspection"}, "answering")
        except GeneratorFailed:
            return []
        shown = str(self._told(told, "results", 0))
        config = without_adapters(model).config.get_text_config()
        found = []
        for name, pattern in _SIZES.items():
            its, ours = re.search(pattern, shown), getattr(config, name, None)
            if its is not None and ours is not None and int(its[1]) != ours:
                found.append((name, int(ours), int(its[1])))
        return found

    # ---- requests ----

    @property
    def _limit(self) -> float:
        return self._settings.server_timeout

    def _complete(self, asked: Sequence[dict[str, Any]], what: str) -> list[dict[str, Any]]:
        """The choice that each request got. As long as any is open the server must make tokens."""
        same = {"model": self._name, "return_token_ids": True, "stream": False}
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        for place in range(len(asked)):
            waiting.put(place)

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    place = waiting.get_nowait()
                    try:
                        # No limit of its own: a long response is no dead server.
                        body = self._request("/v1/completions", {**same, **asked[place]}, None)
                        done.put((place, self._told(json.loads(body), "choices", 0)))
                    except Exception as error:
                        done.put((place, error))
                        return

        for _ in range(min(_AT_ONCE, len(asked))):
            # Daemons: the end of the process must not wait for a frozen server.
            threading.Thread(target=work, daemon=True).start()
        found: dict[int, dict[str, Any]] = {}
        seen, counted = time.monotonic(), -1.0
        while len(found) < len(asked):
            try:
                place, choice = done.get(timeout=min(5.0, self._limit / 4))
            except queue.Empty:
                now = self._tokens_made()
                if now is not None and now != counted:
                    seen, counted = time.monotonic(), now
                if time.monotonic() - seen > self._limit:
                    raise self._lost(
                        f"makes no tokens for {self._limit:g} s (vllm_server_timeout)", what
                    ) from None
                continue
            if isinstance(choice, Exception):
                raise self._lost(first_line(choice), what) from choice
            found[place], seen = choice, time.monotonic()
        return [found[place] for place in range(len(asked))]

    def _tokens_made(self) -> float | None:
        """All tokens that the server has read or made; None where it does not tell in time."""
        with contextlib.suppress(*_BROKEN):
            told = self._request("/metrics", None, self._limit / 4).decode()
            return sum(float(value) for value in _COUNTED.findall(told))
        return None

    def _get(self, path: str) -> Any:
        return self._answer(lambda: self._request(path, None, self._limit), "answering")

    def _post(self, path: str, body: dict[str, Any], what: str) -> Any:
        return self._answer(lambda: self._request(path, body, self._limit), what)

    def _answer(self, ask: Callable[[], bytes], what: str) -> Any:
        try:
            body = ask()
            return json.loads(body) if body.strip() else None
        except _BROKEN as error:
            raise self._lost(first_line(error), what) from error

    def _request(self, path: str, body: dict[str, Any] | None, limit: float | None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self._url + path, data=data, headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=limit) as answer:
                told: bytes = answer.read()
                return told
        except urllib.error.HTTPError as error:
            said = b""
            with error, contextlib.suppress(*_BROKEN):
                said = error.read()
            raise OSError(f"{error.code} {said.decode(errors='replace')}") from error

    def _lost(self, why: str, what: str) -> GeneratorFailed:
        return GeneratorFailed("generator", "vllm", f"the server {self._url} failed {what}: {why}")
