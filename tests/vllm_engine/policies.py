"""A tiny policy whose heads are large enough for vLLM, and a request for responses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import tiny
from dare.policy.generate import GenerationRequest
from dare.policy.policy import Policy
from dare.policy.vllm_engine import VllmSettings

SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 27}
SETTINGS = VllmSettings(engine_kwargs=SMALL, gpu_memory_utilization=0.05, server_timeout=60.0)


def model(**changes: Any) -> Any:
    """Two layers with heads of 32: vLLM knows no kernel for smaller ones."""
    return tiny.blank(hidden_size=64, head_dim=32, **changes)


def policy(settings: VllmSettings = SETTINGS, made: Any = None, **more: Any) -> Policy:
    made = model() if made is None else made
    given = {"generator": "vllm", "engine": settings, "generation_rows": 32, **more}
    return Policy(made, tiny.tokenizer(), **given)


def request(prompts: int = 4, group: int = 4, longest: int = 24, **changes: Any) -> Any:
    """Groups of several prompts, every rollout with a budget of its own."""
    count = prompts * group
    given: dict[str, Any] = {
        "prompts": [tiny.encode(f"what is {place}+{place}? " * 2) for place in range(prompts)],
        "prompt_R": np.repeat(np.arange(prompts), group),
        "max_tokens_R": 1 + np.arange(count) % longest,
        "noise_R": np.arange(count),
        "seed": 3,
        "step": 5,
        **changes,
    }
    return GenerationRequest(**given)


def disturb(model: Any, size: float, seed: int = 0) -> None:
    """What an update does: every weight moves."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(size * torch.randn(weight.shape, generator=generator).to(weight.dtype))
