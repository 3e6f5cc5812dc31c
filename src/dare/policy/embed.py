"""Prompt embeddings for the cold start: mean-pooled last hidden states of the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dare.policy.batching import IntArray, bucket


@torch.inference_mode()
def embed_prompts(
    model: Any,
    prompts: Sequence[IntArray],
    *,
    pad_id: int,
    max_batch_tokens: int = 16384,
    progress: Callable[[int], Any] | None = None,
) -> NDArray[np.float32]:
    """One row a prompt (METHOD 3). Only the last layer's states are kept, never logits."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    result: NDArray[np.float32] | None = None
    for rows in bucket(lengths, max_batch_tokens):
        width = int(lengths[rows].max())
        ids = np.full((len(rows), width), pad_id, dtype=np.int64)
        mask = np.zeros((len(rows), width), dtype=np.int64)
        for place, row in enumerate(rows.tolist()):
            ids[place, : lengths[row]] = prompts[row]
            mask[place, : lengths[row]] = 1
        held = torch.from_numpy(mask).to(device)
        # base_model is the decoder under the language-model head, also inside PEFT's wrapper.
        core = model.get_base_model() if hasattr(model, "get_base_model") else model
        states = core.base_model(
            input_ids=torch.from_numpy(ids).to(device), attention_mask=held, use_cache=False
        ).last_hidden_state
        pooled = (states * held[..., None]).sum(1).float() / held.sum(1, keepdim=True)
        if result is None:
            result = np.empty((len(prompts), pooled.shape[1]), dtype=np.float32)
        result[rows] = pooled.cpu().numpy()
        if progress is not None:
            progress(len(rows))
    model.train(was_training)
    assert result is not None, "there are prompts"
    return result
