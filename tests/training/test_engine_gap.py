"""Rollouts that something else than the policy drew: the gap is measured, and corrected for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from dare.policy.correction import GAP_FIGURES
from dare.policy.generate import Generated, GenerationRequest
from dare.policy.policy import build_generator
from dare_decoder import Sampling

EXPECTED = [0.1, 0.1, 0.1, *[math.exp(-0.1)] * 3, 0.0]
"""Of `GAP_FIGURES` where every token is 0.1 less likely than the engine says."""


class Offset:
    """The policy's own generator, which says that every token was likelier by `by` nats."""

    by = 0.1

    def __init__(self, policy: Any) -> None:
        self._policy, self._inner = policy, build_generator("transformers", policy)
        for name in ("sync", "release", "close"):
            setattr(self, name, getattr(self._inner, name))

    def generate(self, request: GenerationRequest, sampling: Sampling) -> Generated:
        found = self._inner.generate(request, sampling)
        if not request.logprobs:
            return found
        prompts = [request.prompts[place] for place in request.prompt_R]
        own = self._policy.score(prompts, found.tokens, sampling, drawn=True).sampled + self.by
        ends = np.cumsum([len(row) for row in found.tokens])[:-1]
        return replace(found, logprobs=np.split(own, ends))


def logs(folder: Path, by: float | None = 0.1, **changes: Any) -> list[dict[str, float]]:
    settings = {"preset": "grpo", "max_grad_norm": 0.0, "top_p": 0.9, "learning_rate": 0.0}
    settings |= {"max_steps": 2, **changes}
    if by is not None:
        settings["generator"] = "test_engine_gap:Offset"
    Offset.by = by or 0.0
    trainer = tiny.trainer(folder, **settings)
    trainer.train()
    return [line for line in trainer.state.log_history if "loss" in line]


def test_the_gap_is_measured_and_weighs_the_gradient(tmp_path: Path) -> None:
    plain = logs(tmp_path / "plain", by=None)
    mode = {"vllm_importance_sampling_mode": "token_truncate"}
    off = logs(tmp_path / "off", **mode)
    for one, other in zip(plain, off, strict=True):
        assert not set(GAP_FIGURES) & set(one)
        found = [other[name] for name in GAP_FIGURES]
        assert found == pytest.approx(EXPECTED, rel=1e-3)
        assert other["grad_norm"] == pytest.approx(math.exp(-0.1) * one["grad_norm"], rel=1e-3)
    cut = logs(tmp_path / "cut", by=-0.5, vllm_importance_sampling_clip_max=1.2, **mode)
    assert cut[0]["grad_norm"] == pytest.approx(1.2 * plain[0]["grad_norm"], rel=1e-3)
    assert cut[0]["sampling/importance_sampling_ratio/max"] == pytest.approx(1.2)


def test_responses_too_far_off_are_masked_by_default(tmp_path: Path) -> None:
    found = logs(tmp_path, by=-2.0)
    assert found[0]["sampling/importance_sampling_ratio/max"] <= 3.0
    assert found[0]["sampling/importance_sampling_ratio/min"] == 0.0
    assert found[0]["sampling/masked_share"] == 1.0
    assert found[0]["grad_norm"] == 0.0  # e^2 a token: no response is likely enough


@pytest.mark.parametrize(
    "changes",
    [
        {"num_iterations": 2, "max_steps": 4},
        {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "max_steps": 4,
         "per_device_train_batch_size": 8},
        {"preset": "dare", "curriculum": tiny.CLASSIC},
        {"top_p": 1.0},
    ],
    ids=["iterations", "mini-batches", "help and replay", "no nucleus"],
)  # fmt: skip
def test_it_is_the_same_wherever_the_policys_log_probs_come_from(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """From the update's own pass, from one ahead of it, from one under the hinted prompt."""
    mode = {"vllm_importance_sampling_mode": "token_truncate"}
    found = logs(tmp_path, **mode, **changes)
    told = [line for line in found if GAP_FIGURES[0] in line]
    assert told
    for line in told:
        values = [line[name] for name in GAP_FIGURES]
        assert values == pytest.approx(EXPECTED, rel=1e-3)
