from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from policies import SETTINGS, disturb, model, policy, request

import tiny
from dare.errors import InvalidInput
from dare.policy import vllm as ours
from dare.policy.generate import GeneratorFailed
from dare.policy.policy import Policy
from dare.policy.vllm_engine import VllmSettings
from dare_decoder import Sampling

GREEDY, DRAWN = Sampling(0.0, 1.0, 0), Sampling(0.6, 0.95, 0)


class Server:
    def __init__(self, folder: Path) -> None:
        made = model()
        made.save_pretrained(folder / "model")
        tiny.tokenizer().save_pretrained(folder / "model")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", folder / "log"
        words = f"--dtype float32 --enforce-eager --host 127.0.0.1 --port {port} --seed 0"
        words += " --max-model-len 768 --kv-cache-memory-bytes 134217728"
        words += " --gpu-memory-utilization 0.05 --logprobs-mode processed_logprobs"
        given = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        given |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        script = Path(__file__).with_name("serve.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), "--model", str(folder / "model"), *words.split()],
            env={**os.environ, **given},
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def settings(self, folder: Path, **changes: Any) -> VllmSettings:
        given: dict[str, Any] = {"mode": "server", "server_url": self.url, "server_timeout": 300.0}
        return replace(SETTINGS, **{**given, "sync_folder": str(folder), **changes})

    def children(self) -> list[int]:
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(word) for word in listed.split()]

    @contextmanager
    def stopped(self, *processes: int) -> Iterator[None]:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    if made.process.poll() is None:
        os.killpg(made.process.pid, signal.SIGKILL)
        made.process.wait()


def rows(found: Any) -> list[list[int]]:
    return [row.tolist() for row in found.tokens]


def test_it_draws_as_transformers_does_before_and_after_an_update(
    server: Server, tmp_path: Path
) -> None:
    made = policy(server.settings(tmp_path))
    own = Policy(made.module, made.tokenizer)
    assert rows(made.generate(request(), GREEDY)) == rows(own.generate(request(), GREEDY))
    disturb(made.module, 0.05)
    made.updated()
    assert rows(made.generate(request(), GREEDY)) == rows(own.generate(request(), GREEDY))
    assert made.generator.gap < 1e-4  # type: ignore[attr-defined]
    made.close()
    assert list(tmp_path.iterdir()) == []  # the weights are not left lying about


def test_budgets_seeds_and_log_probs_are_each_rollouts_own(server: Server, tmp_path: Path) -> None:
    made = policy(server.settings(tmp_path))
    asked = replace(request(), logprobs=True)
    found = made.generate(asked, DRAWN)
    for tokens, budget in zip(found.tokens, asked.max_tokens_R, strict=True):
        assert int(tokens[-1]) == tiny.END or len(tokens) == budget
        assert tiny.END not in tokens[:-1]
    order = np.random.default_rng(0).permutation(len(found.tokens))[:9]
    some = replace(
        asked,
        prompt_R=asked.prompt_R[order],
        max_tokens_R=asked.max_tokens_R[order],
        noise_R=asked.noise_R[order],
    )
    assert rows(made.generate(some, DRAWN)) == [found.tokens[row].tolist() for row in order]
    prompts = [asked.prompts[place] for place in asked.prompt_R]
    own = made.score(prompts, found.tokens, DRAWN, drawn=True).sampled
    assert found.logprobs is not None
    np.testing.assert_allclose(np.concatenate(found.logprobs), own, atol=1e-4)


def test_training_with_a_server(server: Server, tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path,
        model=model(),
        preset="grpo",
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=server.url,
        max_steps=3,
    )
    trainer.train()
    logged = [line for line in trainer.state.log_history if "loss" in line]
    assert len(logged) == 3
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-3 for line in logged)


def test_two_processes_share_a_server(server: Server, tmp_path: Path) -> None:
    changes = {"vllm_mode": "server", "vllm_server_base_url": server.url}
    script = str(Path(__file__).with_name("train_small.py"))
    done = tiny.torchrun(script, str(tmp_path), json.dumps(changes))
    assert done.returncode == 0, done.stderr[-3000:]
    steps = tiny.lines(tmp_path / "metrics.jsonl")
    assert len(steps) == 3
    assert all(step["sampling/sampling_logp_difference/max"] < 1e-3 for step in steps)


def test_a_corrupted_transfer_stops_the_run(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = ours.weights_of

    def corrupted(*given: Any) -> Iterator[Any]:
        for name, value in sent(*given):
            yield name, value + 0.1 if "layers.1.mlp.down_proj" in name else value

    made = policy(server.settings(tmp_path))
    monkeypatch.setattr(ours, "weights_of", corrupted)
    with pytest.raises(GeneratorFailed, match="does not have the policy's weights"):
        made.generate(request(), GREEDY)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: model(num_hidden_layers=3), "another model.*num_hidden_layers is 2"),
        (lambda: model(vocab_size=200), "another model.*vocab_size is 99"),
        (lambda: model().to(torch.bfloat16), "dtype torch.float32, torch.bfloat16 is needed"),
    ],
)
def test_a_server_of_another_model_is_refused(
    other: Any, says: str, server: Server, tmp_path: Path
) -> None:
    made = policy(server.settings(tmp_path), made=other())
    with pytest.raises(InvalidInput, match=says) as caught:
        made.generate(request(), GREEDY)
    assert caught.value.field == "vllm_server_base_url"


def test_no_server_is_one_line_with_the_command(tmp_path: Path) -> None:
    settings = replace(SETTINGS, mode="server", server_url="http://127.0.0.1:9", server_timeout=1.0)
    made = policy(replace(settings, sync_folder=str(tmp_path)))
    with pytest.raises(InvalidInput, match=r"within 1 s.*vllm serve MODEL") as caught:
        made.generate(request(), GREEDY)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["server", "engine"])
def test_a_frozen_server_is_given_up_in_time(part: str, server: Server, tmp_path: Path) -> None:
    made = policy(server.settings(tmp_path))
    made.generate(request(), GREEDY)
    made = policy(server.settings(tmp_path, server_timeout=5.0))
    made.generate(request(), GREEDY)
    frozen = [server.process.pid] if part == "server" else server.children()
    assert frozen
    with server.stopped(*frozen):
        begun = time.monotonic()
        with pytest.raises(GeneratorFailed, match="makes no tokens for 5 s"):
            made.generate(request(), DRAWN)
        assert 5 <= time.monotonic() - begun < 15


def test_a_killed_server_is_noticed_at_once(server: Server, tmp_path: Path) -> None:
    made = policy(server.settings(tmp_path))
    made.generate(request(), GREEDY)
    os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()
    with pytest.raises(GeneratorFailed, match=f"the server {server.url} failed generating"):
        made.generate(request(), GREEDY)
