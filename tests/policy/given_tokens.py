"""Models and ragged texts on which layouts and dtypes are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

import tiny
from dare.policy.logprobs import both_of
from dare_decoder import Sampling
from dare_decoder.batching import Layout

PADDED, PACKED = Layout(packed=False, pad_id=tiny.PAD), Layout(packed=True, pad_id=tiny.PAD)
_RNG = np.random.default_rng(1)
PROMPTS = [_RNG.integers(4, 90, size) for size in (3, 30, 11, 2, 6, 1)]
RESPONSES = [_RNG.integers(4, 90, size) for size in (25, 2, 9, 1, 0, 4)]
ROWS = np.array([2, 0, 1, 5, 3, 4])
TOKENS = sum(len(response) for response in RESPONSES)


def _shared_heads() -> Any:
    return tiny.blank(num_attention_heads=4, num_key_value_heads=2)


def _tied() -> Any:
    return tiny.blank(tie_word_embeddings=True)


def _with_biases() -> Any:
    """Qwen2 has them in attention; the output layer gets one too."""
    settings = {
        "vocab_size": len(tiny.VOCABULARY),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "bos_token_id": None,
        "eos_token_id": tiny.END,
        "tie_word_embeddings": False,
        "initializer_range": 0.08,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(**settings)).eval()
        model.lm_head.bias = torch.nn.Parameter(0.3 * torch.randn(len(tiny.VOCABULARY)))
        for name, value in model.named_parameters():
            if name.endswith("_proj.bias"):
                torch.nn.init.normal_(value, std=0.1)
    return model


def _adapted() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = get_peft_model(tiny.policy(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        for name, value in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(value, std=0.3)
    return model.eval()


def _scaled_after_head() -> Any:
    """Its logits are no plain layer's: another way to them is taken."""
    model = tiny.policy()
    model.config.logits_scaling = 2.0
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "taught": tiny.policy,
    "shared heads": _shared_heads,
    "tied": _tied,
    "biases": _with_biases,
    "adapters": _adapted,
    "scaled": _scaled_after_head,
}


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Of every parameter that has one."""
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def far(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest difference of two sets of gradients, as a share of the largest gradient."""
    assert found.keys() == expected.keys()
    largest = max(float(value.abs().max()) for value in expected.values())
    assert largest > 1e-3  # or the comparison would say nothing
    gaps = [float((found[name] - value).abs().max()) for name, value in expected.items()]
    return max(gaps) / largest


def sampling_logprob(
    logits: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
) -> torch.Tensor:
    """Log-prob of each target under what is sampled from; nothing is put down to rounding."""
    sampling = Sampling(temperature, top_p, top_k)
    return both_of(logits, targets, sampling, margin=0.0, drawn=False)[1]
