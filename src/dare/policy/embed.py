"""Prompts as the policy sees them: pooled for comparison, or its state where the answer begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dare.errors import InvalidInput
from dare_decoder.batching import IntArray, Layout, TokenBatch, layout_of
from dare_decoder.model import reading, without_adapters
from dare_decoder.packed_attention import packed_attention

STATE_DEPTH = 5 / 7
"""Share of the layers after which a state is taken. Middle layers tell best how a prompt will come
out (benchmarks/forecast.py); the last ones are about the next token."""


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
    return _read(model, prompts, _last_state, pad_id, max_batch_tokens, None, layout)


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
    result: NDArray[np.float32] | None = None
    # base_model is the decoder under the language-model head, also inside PEFT's wrapper.
    core = without_adapters(model)
    layout = layout_of(model, pad_id) if layout is None else layout
    nothing = [np.empty(0, dtype=np.int64)] * len(prompts)
    with reading(model) as device:
        for batch in layout.batches(prompts, nothing, max_batch_tokens, device):
            found = reduce(core, batch).float().cpu().numpy()
            if result is None:
                result = np.empty((len(prompts), found.shape[1]), dtype=np.float32)
            result[batch.rows] = found
            if progress is not None:
                progress(len(found))
    return np.zeros((0, 0), np.float32) if result is None else result


def _last_state(core: Any, batch: TokenBatch) -> Tensor:
    """The last token's state after the chosen layer: [B, H]; the layers above are not run."""
    layers = _layers(core)
    chosen = layers[max(1, round(STATE_DEPTH * len(layers))) - 1]
    caught: list[Tensor] = []

    def stop(_module: Any, _inputs: Any, output: Any) -> None:
        caught.append(output[0] if isinstance(output, tuple) else output)
        raise _Enough

    hook = chosen.register_forward_hook(stop)
    try:
        with packed_attention(core) if batch.packed else nullcontext(), suppress(_Enough):
            core.base_model(**batch.model_inputs())
    finally:
        hook.remove()
    last = batch.edges.diff().long() - 1
    if batch.packed:
        return caught[0][0, batch.edges[1:].long() - 1]
    return caught[0][torch.arange(len(last), device=last.device), last]


class _Enough(Exception):
    """The layer that was asked for has answered."""


def _layers(core: Any) -> Any:
    """The decoder's layers: the list of modules that has as many as the configuration says."""
    wanted = core.config.get_text_config().num_hidden_layers
    found = [m for m in core.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == wanted]
    if not found:
        raise InvalidInput(
            "model",
            type(core).__name__,
            f"has no list of its {wanted} layers, whose states the estimator `dare` reads; use "
            "another estimator",
        )
    return found[0]


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
