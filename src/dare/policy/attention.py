"""Attention of one new token where several query heads share their keys and values.

With a mask, transformers' sdpa first copies keys and values out for every query head. Here the
heads that share them are the rows of one matrix product with the cache as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

GROUPED = "dare_grouped"
"""The name under which transformers knows `attend_grouped`."""

# What models pass along that changes nothing for one query with a whole mask.
_WITHOUT_EFFECT = {"position_ids", "use_cache", "is_causal"}


def attend_grouped(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """[B, heads, 1, D] over [B, shared, L, D] -> [B, 1, heads, D]; sdpa where it has no answer.

    It has one for a single token in float32 with shared heads and a boolean mask [B, 1, 1, L],
    where the model asks for nothing else (dropout, a soft cap, sinks, a sliding window).
    """
    able = dropout == 0.0 and _fits(query, key, value, attention_mask) and _plain(rest)
    if not able or attention_mask is None:
        sdpa = AttentionInterface()["sdpa"]
        found: tuple[Tensor, Tensor | None] = sdpa(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
        )
        return found
    return _grouped(query, key, value, attention_mask, scaling), None


def _fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether these are what `_grouped` works on.

    In 16 bits the product would round the scores, which can be large, and sdpa does not.
    """
    size, heads, length, _ = query.shape
    shared, width = key.shape[1:3]
    if mask is None or mask.dtype != torch.bool or mask.shape != (size, 1, 1, width):
        return False
    exact = query.dtype == key.dtype == value.dtype == torch.float32
    exact = exact and not torch.is_autocast_enabled(query.device.type)
    return exact and length == 1 and shared < heads and heads % shared == 0


def _plain(rest: dict[str, Any]) -> bool:
    """Whether nothing is asked for that could change the result, known here or not."""
    return all(
        asked is None or asked is False or name in _WITHOUT_EFFECT for name, asked in rest.items()
    )


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None
) -> Tensor:
    """Softmax attention, with the heads that share keys and values as rows."""
    size, heads, _, depth = query.shape
    scale = depth**-0.5 if scale is None else scale
    rows = (query * scale).reshape(size, key.shape[1], -1, depth)
    scores = rows @ key.transpose(-1, -2)
    # The least number has weight 0 as -inf has, but a row that may see nothing stays finite.
    scores = scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return (scores.softmax(-1) @ value).reshape(size, 1, heads, -1)


AttentionInterface.register(GROUPED, attend_grouped)
# Without masks of its own a name gets none at all, unless they come in four dimensions.
AttentionMaskInterface.register(GROUPED, AttentionMaskInterface()["sdpa"])


@contextmanager
def grouped_attention(model: Any) -> Iterator[None]:
    """Inside, a model with sdpa attends by `attend_grouped`; others are left as they are."""
    if not _can_switch(model):
        yield
        return
    try:
        model.set_attn_implementation(GROUPED)
        yield
    finally:
        model.set_attn_implementation("sdpa")


def _can_switch(model: Any) -> bool:
    """With sdpa for all of it, and looked up by name: a part with its own could not get it back."""
    config = model.config
    single = config.get_text_config() is config
    return bool(single and config._attn_implementation == "sdpa" and model.is_backend_compatible())
