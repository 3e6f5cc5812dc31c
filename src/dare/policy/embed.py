"""Prompt embeddings for the cold start: mean-pooled last hidden states of the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dare.policy.batching import IntArray, Layout, TokenBatch, layout_of
from dare.policy.packed_attention import packed_attention


@torch.no_grad()
def embed_prompts(
    model: Any,
    prompts: Sequence[IntArray],
    *,
    pad_id: int,
    max_batch_tokens: int = 16384,
    progress: Callable[[int], Any] | None = None,
    layout: Layout | None = None,
) -> NDArray[np.float32]:
    """One row a prompt (METHOD 3). Only the last layer's states are kept, never logits."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    result: NDArray[np.float32] | None = None
    # base_model is the decoder under the language-model head, also inside PEFT's wrapper.
    core = model.get_base_model() if hasattr(model, "get_base_model") else model
    layout = layout_of(model, pad_id) if layout is None else layout
    nothing = [np.empty(0, dtype=np.int64)] * len(prompts)
    for rows in layout.split(lengths, max_batch_tokens):
        pooled = _pooled(core, layout.batch(prompts, nothing, rows).to(device))
        if result is None:
            result = np.empty((len(prompts), pooled.shape[1]), dtype=np.float32)
        result[rows] = pooled.cpu().numpy()
        if progress is not None:
            progress(len(rows))
    model.train(was_training)
    assert result is not None, "there are prompts"
    return result


def _pooled(core: Any, batch: TokenBatch) -> Tensor:
    """The mean of each sequence's states, in float32: [B, H]."""
    if batch.packed:
        with packed_attention(core):
            states = core.base_model(**batch.model_inputs()).last_hidden_state[0]
        return torch.segment_reduce(states.float(), "mean", offsets=batch.edges.long())
    # Encoders that are no policies look in both directions: they must not see the padding.
    held = batch.padding_mask()
    states = core.base_model(**batch.model_inputs(), attention_mask=held).last_hidden_state
    return (states * held[..., None]).sum(1, dtype=torch.float32) / held.sum(1, keepdim=True)
