"""Log-probs and entropy of given responses: one code path for behaviour, current and reference
policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dare.policy.logprobs import both_of, chunked_logits, head_logprob, rounding_margin
from dare_decoder import Sampling
from dare_decoder.batching import IntArray, Layout, TokenBatch, layout_of
from dare_decoder.model import bare, has_plain_head, reading
from dare_decoder.packed_attention import packed_attention, through_backward


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


def batch_logprobs(
    model: nn.Module, batch: TokenBatch, temperature: float, sampling: Sampling | None = None
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of every response token [N], response after response; carries the gradient.

    With `sampling`, [2, N] of its nucleus too: the log of the mass that it keeps, which a drawn
    token's log-prob less is that under the distribution sampled from; and 1 where the token is
    outside of it. No gradient.
    """
    kept_at_head: list[Tensor | None] = []

    def function(
        hidden: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        found, kept = head_logprob(hidden, weight, bias, batch.targets, temperature, sampling)
        kept_at_head.append(kept)
        return found

    return _by_head(model, batch, function), kept_at_head[-1]


def both_logprobs(
    model: nn.Module, batch: TokenBatch, sampling: Sampling, *, drawn: bool = False
) -> Tensor:
    """[2, N]: over the full vocabulary, and of the distribution sampled from. No gradient."""

    def both(logits: Tensor, targets: Tensor) -> Tensor:
        margin = rounding_margin(logits.dtype)
        return both_of(logits, targets, sampling, margin=margin, drawn=drawn)

    return _of_logits(model, batch, both)


def token_entropy(logits: Tensor, temperature: float) -> Tensor:
    """-sum p log p of each row at the temperature, in float32."""
    logprob = (logits.float() / temperature).log_softmax(-1)
    return -(logprob.exp() * logprob).sum(-1)


def _of_logits(
    model: nn.Module, batch: TokenBatch, function: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """function(logits, targets) of a few response tokens at a time, all in a row; no gradient."""

    def chunked(hidden: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        chunks = chunked_logits(hidden, weight, bias)
        found = [function(logits, batch.targets[part]) for part, logits in chunks]
        nothing = hidden.new_empty(0, hidden.shape[-1])
        return torch.cat(found or [function(nothing, batch.targets)], dim=-1)

    with torch.no_grad():
        return _by_head(model, batch, chunked)


def _by_head(model: nn.Module, batch: TokenBatch, function: Callable[..., Tensor]) -> Tensor:
    """function(hidden, weight, bias) at a plain head, function(logits) of another."""
    if has_plain_head(model):
        return at_head(model, batch, function)
    return function(response_logits(model, batch))


def score(
    model: nn.Module,
    prompts: Sequence[IntArray],
    responses: Sequence[IntArray],
    sampling: Sampling,
    *,
    pad_id: int,
    max_batch_tokens: int = 16384,
    drawn: bool = False,
    layout: Layout | None = None,
) -> Scores:
    """Score responses given their prompts, in batches of at most `max_batch_tokens`.

    `layout` is the model's own unless given.
    """
    sizes = np.array([len(response) for response in responses], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    flat, sampled = np.zeros((2, int(offsets[-1])), dtype=np.float32)
    total = np.zeros(len(responses), dtype=np.float64)
    layout = layout_of(model, pad_id) if layout is None else layout
    with reading(model) as device:
        for batch in layout.batches(prompts, responses, max_batch_tokens, device):
            tokens, exact = both_logprobs(model, batch, sampling, drawn=drawn)
            # Rows of the batch are scattered over the flat result; sums are taken in float64.
            rows, values = batch.rows, exact.double().cpu().numpy()
            where = np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row in rows])
            flat[where], sampled[where] = tokens.float().cpu().numpy(), values
            sums = _sums(np.where(np.isneginf(values), 0.0, values), sizes[rows])
            outside = _sums(np.isneginf(values), sizes[rows]) > 0
            total[rows] = np.where(outside, -np.inf, sums)
    return Scores(flat, sampled, total)


def mean_entropy(
    model: nn.Module,
    prompts: Sequence[IntArray],
    responses: Sequence[IntArray],
    temperature: float,
    *,
    pad_id: int,
    max_batch_tokens: int = 16384,
    layout: Layout | None = None,
) -> NDArray[np.float64]:
    """Mean token entropy of each response, 0 for an empty one: how uncertain the policy was while
    writing it (EDCO)."""
    sizes = np.array([len(response) for response in responses], dtype=np.int64)
    result = np.zeros(len(responses))
    layout = layout_of(model, pad_id) if layout is None else layout
    with reading(model) as device:
        for batch in layout.batches(prompts, responses, max_batch_tokens, device):
            found = _of_logits(model, batch, lambda logits, _: token_entropy(logits, temperature))
            size = sizes[batch.rows]
            result[batch.rows] = _sums(found.double().cpu().numpy(), size) / np.maximum(size, 1)
    return result


def _sums(values: NDArray[Any], sizes: IntArray) -> NDArray[np.float64]:
    """Of values that lie one behind another the sum of each stretch."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return np.bincount(owner, weights=values, minlength=len(sizes)).astype(np.float64)
