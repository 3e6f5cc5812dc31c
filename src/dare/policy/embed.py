"""Prompts as the policy sees them: pooled for comparison, or its state where the answer begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dare.policy.batching import IntArray, Layout, TokenBatch, layout_of
from dare.policy.packed_attention import packed_attention

STATE_DEPTH = 5 / 7
"""Share of the layers after which a state is taken. Middle layers tell best how a prompt will come
out (benchmarks/forecast.py); the last ones are about the next token."""
_STATE_BYTES = 1 << 30  # of the states of all layers, which are there at once


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
    return _read(model, prompts, _pooled, pad_id, max_batch_tokens, progress, layout)


def prompt_states(
    model: Any,
    prompts: Sequence[IntArray],
    *,
    pad_id: int,
    max_batch_tokens: int = 16384,
    layout: Layout | None = None,
) -> NDArray[np.float32]:
    """One row a prompt: the state of its last token after the layer at `STATE_DEPTH`."""
    config = model.config.get_text_config()
    a_token = 4 * config.hidden_size * (config.num_hidden_layers + 1)
    fits = max(1, min(max_batch_tokens, _STATE_BYTES // a_token))
    return _read(model, prompts, _last_state, pad_id, fits, None, layout)


@torch.no_grad()
def _read(
    model: Any,
    prompts: Sequence[IntArray],
    reduce: Callable[[Any, TokenBatch], Tensor],
    pad_id: int,
    max_batch_tokens: int,
    progress: Callable[[int], Any] | None,
    layout: Layout | None,
) -> NDArray[np.float32]:
    """What `reduce` makes of each batch of prompts, a row a prompt."""
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
        found = reduce(core, layout.batch(prompts, nothing, rows).to(device))
        if result is None:
            result = np.empty((len(prompts), found.shape[1]), dtype=np.float32)
        result[rows] = found.float().cpu().numpy()
        if progress is not None:
            progress(len(rows))
    model.train(was_training)
    assert result is not None, "there are prompts"
    return result


def _last_state(core: Any, batch: TokenBatch) -> Tensor:
    """The last token's state after the chosen layer: [B, H]."""
    layer = max(1, round(STATE_DEPTH * core.config.get_text_config().num_hidden_layers))
    with packed_attention(core) if batch.packed else nullcontext():
        answer = core.base_model(**batch.model_inputs(), output_hidden_states=True)
    states = answer.hidden_states[layer]
    last = batch.edges.diff().long() - 1
    if batch.packed:
        return states[0, batch.edges[1:].long() - 1]
    return states[torch.arange(len(last), device=last.device), last]


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
