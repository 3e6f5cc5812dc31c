"""Log-probs of given responses: one code path for behaviour, current and reference policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dare.policy.batching import IntArray, Layout, TokenBatch, layout_of
from dare.policy.logprobs import Sampling as Sampling
from dare.policy.logprobs import (
    both_of,
    chunked_logits,
    head_logprob,
    nucleus_at,
    rounding_margin,
    selected_logprob,
)
from dare.policy.packed_attention import bare, packed_attention, through_backward


@dataclass(frozen=True)
class Scores:
    """Per token (flat, in the order of the responses) and in total, per response.

    logprobs   at the temperature over the full vocabulary: finite, for the loss
    sampled    of the distribution sampled from, nucleus included; may be -inf
    total      the sums of these: for SNIS
    """

    logprobs: NDArray[np.float32]
    sampled: NDArray[np.float32]
    total: NDArray[np.float64]


def response_logits(model: nn.Module, batch: TokenBatch) -> Tensor:
    """Logits that predict each response token: [N, V]. For heads that are no plain layer.

    Of a packed batch no others are made; of a padded one those of the columns from where the
    shortest prompt ends.
    """
    if batch.packed:
        return _forward(model, batch, logits_to_keep=batch.predicting)[0]
    width = batch.input_ids.shape[1]
    row = torch.div(batch.predicting, width, rounding_mode="floor")
    column = batch.predicting - row * width
    first = int(column.min()) if len(column) else width - 1
    logits = _forward(model, batch, logits_to_keep=width - first)
    return logits[row, column - first]


HeadFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def at_head(model: nn.Module, batch: TokenBatch, function: HeadFunction) -> Tensor:
    """function(hidden [N, H], weight, bias) where each response token is predicted.

    It runs in place of the output layer, inside the model's forward pass: wrappers that gather
    parameters for it still do, and logits of prompts, padding or the whole batch never exist.
    """
    head = bare(model).get_output_embeddings()
    width = batch.input_ids.shape[1]

    def instead(hidden: Tensor) -> Tensor:
        # From the right: adapters may have put virtual tokens in front.
        flat = hidden[:, -width:].flatten(0, 1)
        return function(flat.index_select(0, batch.predicting), head.weight, head.bias)

    head.forward = instead
    try:
        return _forward(model, batch)
    finally:
        del head.forward


def _forward(model: nn.Module, batch: TokenBatch, **more: Any) -> Tensor:
    """What the model gives for logits."""
    with packed_attention(model) if batch.packed else nullcontext():
        logits: Tensor = model(**batch.model_inputs(), **more).logits
    return through_backward(logits, model) if batch.packed else logits


_AFTER_HEAD = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)


def has_plain_head(model: Any) -> bool:
    """Whether logits are what a linear layer gives, with nothing added or scaled after it."""
    model = bare(model)
    config = model.config.get_text_config()
    changed = any(getattr(config, name, None) not in (None, 1.0) for name in _AFTER_HEAD)
    return type(model.get_output_embeddings()) is nn.Linear and not changed


def batch_logprobs(
    model: nn.Module, batch: TokenBatch, temperature: float, sampling: Sampling | None = None
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of every response token [N], response after response; carries the gradient.

    With `sampling`, [2, N] of its nucleus too: the log of the mass that it keeps, which a drawn
    token's log-prob less is that under the distribution sampled from; and 1 where the token is
    outside of it. No gradient.
    """
    if not has_plain_head(model):
        logits = response_logits(model, batch)
        kept = None if sampling is None else nucleus_at(logits.detach(), batch.targets, sampling)
        return selected_logprob(logits, batch.targets, temperature), kept
    kept_at_head: list[Tensor | None] = []

    def function(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        found, kept = head_logprob(hidden, weight, bias, batch.targets, temperature, sampling)
        kept_at_head.append(kept)
        return found

    return at_head(model, batch, function), kept_at_head[-1]


def both_logprobs(
    model: nn.Module, batch: TokenBatch, sampling: Sampling, *, drawn: bool = False
) -> Tensor:
    """[2, N]: over the full vocabulary, and of the distribution sampled from. No gradient."""

    def both(logits: Tensor, targets: Tensor) -> Tensor:
        margin = rounding_margin(logits.dtype)
        return both_of(logits, targets, sampling, margin=margin, drawn=drawn)

    def chunked(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        found = [
            both(logits, batch.targets[part])
            for part, logits in chunked_logits(hidden, weight, bias)
        ]
        return torch.cat(found, dim=1) if found else hidden.new_empty(2, 0, dtype=torch.float32)

    with torch.no_grad():
        if has_plain_head(model):
            return at_head(model, batch, chunked)
        return both(response_logits(model, batch), batch.targets)


@torch.no_grad()
def score(
    model: nn.Module,
    prompts: Sequence[IntArray],
    responses: Sequence[IntArray],
    sampling: Sampling,
    *,
    pad_id: int,
    max_batch_tokens: int = 16384,
    device: torch.device | str | None = None,
    progress: Callable[[int], Any] | None = None,
    drawn: bool = False,
    layout: Layout | None = None,
) -> Scores:
    """Score responses given their prompts, in batches of at most `max_batch_tokens`.

    `layout` is the model's own unless given.
    """
    lengths = np.array([len(p) + len(r) for p, r in zip(prompts, responses, strict=True)], np.int64)
    sizes = np.array([len(response) for response in responses], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    flat, sampled = np.zeros((2, int(offsets[-1])), dtype=np.float32)
    total = np.zeros(len(responses), dtype=np.float64)
    if device is None:
        device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    layout = layout_of(model, pad_id) if layout is None else layout
    for rows in layout.split(lengths, max_batch_tokens):
        batch = layout.batch(prompts, responses, rows).to(device)
        tokens, exact = both_logprobs(model, batch, sampling, drawn=drawn)
        # Rows of the batch are scattered over the flat result; sums are taken in float64.
        where = np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row in rows])
        flat[where] = tokens.float().cpu().numpy()
        owner = np.repeat(np.arange(len(rows)), sizes[rows])
        values = exact.double().cpu().numpy()
        sampled[where] = values
        finite = np.where(np.isneginf(values), 0.0, values)
        sums = np.bincount(owner, weights=finite, minlength=len(rows))
        outside = np.bincount(owner, weights=np.isneginf(values), minlength=len(rows)) > 0
        total[rows] = np.where(outside, -np.inf, sums)
        if progress is not None:
            progress(int(lengths[rows].sum()))
    model.train(was_training)
    return Scores(flat, sampled, total)
