"""Log-probs of given responses: one code path for behaviour, current and reference policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dare.policy.batching import IntArray, PaddedBatch, bucket, pad
from dare.policy.logprobs import head_logprob, parts, sampling_logprob, selected_logprob


@dataclass(frozen=True)
class Sampling:
    """The distribution that responses are drawn from."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0


@dataclass(frozen=True)
class Scores:
    """Per token (flat, in the order of the responses) and in total, per response.

    logprobs   at the temperature over the full vocabulary: finite, for the loss
    total      of the distribution sampled from, nucleus included: for SNIS; may be -inf
    """

    logprobs: NDArray[np.float32]
    total: NDArray[np.float64]


def response_logits(model: nn.Module, batch: PaddedBatch) -> tuple[Tensor, Tensor]:
    """Logits that predict each real response token, and those tokens: [N, V] and [N].

    For heads that are no plain layer. Logits are asked for from where the shortest prompt of the
    batch ends, and of these only the ones of real response tokens are kept.
    """
    logits = _forward(model, batch)[:, -batch.targets.shape[1] - 1 : -1]
    return logits[batch.response_mask], batch.targets[batch.response_mask]


HeadFunction = Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]


def at_head(model: nn.Module, batch: PaddedBatch, function: HeadFunction) -> Tensor:
    """function(hidden [N, H], weight, bias, targets [N]) where each real response token is made.

    It runs in place of the output layer, inside the model's forward pass: wrappers that gather
    parameters for it still do, and logits of prompts, padding or the whole batch never exist.
    """
    columns = batch.targets.shape[1]
    head = _output_layer(model)

    def instead(hidden: Tensor) -> Tensor:
        rows = hidden[:, -columns - 1 : -1][batch.response_mask]
        targets = batch.targets[batch.response_mask]
        return function(rows, head.weight, head.bias, targets)

    head.forward = instead
    try:
        return _forward(model, batch)
    finally:
        del head.forward


def _forward(model: nn.Module, batch: PaddedBatch) -> Tensor:
    """The model's logits for the columns with responses, and the one before them."""
    logits: Tensor = model(
        input_ids=batch.input_ids,
        use_cache=False,
        logits_to_keep=batch.targets.shape[1] + 1,
    ).logits
    return logits


_AFTER_HEAD = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)


def _output_layer(model: Any) -> Any:
    while hasattr(model, "module"):
        model = model.module
    return model.get_output_embeddings()


def has_plain_head(model: Any) -> bool:
    """Whether logits are what a linear layer gives, with nothing added or scaled after it."""
    while hasattr(model, "module"):
        model = model.module
    config = model.config.get_text_config()
    changed = any(getattr(config, name, None) not in (None, 1.0) for name in _AFTER_HEAD)
    return type(_output_layer(model)) is nn.Linear and not changed


def batch_logprobs(model: nn.Module, batch: PaddedBatch, temperature: float) -> Tensor:
    """Log-prob of every real response token, flat in batch order; carries the gradient."""
    if not has_plain_head(model):
        return selected_logprob(*response_logits(model, batch), temperature)

    def function(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        return head_logprob(hidden, weight, bias, targets, temperature)

    return at_head(model, batch, function)


def both_logprobs(
    model: nn.Module, batch: PaddedBatch, sampling: Sampling, *, drawn: bool = False
) -> Tensor:
    """[2, N]: over the full vocabulary, and of the distribution sampled from. No gradient."""
    heat, top_p, top_k = sampling.temperature, sampling.top_p, sampling.top_k

    def both(logits: Tensor, targets: Tensor) -> Tensor:
        full = selected_logprob(logits, targets, heat)
        if top_p == 1.0 and top_k == 0:
            return torch.stack([full, full])
        margin = 1e-4 if logits.dtype == torch.float32 else 0.03
        exact = sampling_logprob(logits, targets, heat, top_p, top_k, margin=margin, drawn=drawn)
        return torch.stack([full, exact])

    def chunked(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        found = [
            both(nn.functional.linear(hidden[part], weight, bias), targets[part])
            for part in parts(hidden, len(weight))
        ]
        return torch.cat(found, dim=1) if found else hidden.new_empty(2, 0)

    if not has_plain_head(model):
        return both(*response_logits(model, batch))
    return at_head(model, batch, chunked)


@torch.inference_mode()
def score(
    model: nn.Module,
    prompts: Sequence[IntArray],
    responses: Sequence[IntArray],
    sampling: Sampling,
    *,
    pad_id: int,
    max_batch_tokens: int = 16384,
    forwards: int | None = None,
    device: torch.device | str | None = None,
    progress: Callable[[int], Any] | None = None,
    drawn: bool = False,
) -> Scores:
    """Score responses given their prompts, bucketed by length.

    `forwards` is the number of forward passes that every process must run when the model is
    sharded; a process with fewer batches repeats its last one and ignores the result.
    """
    lengths = np.array([len(p) + len(r) for p, r in zip(prompts, responses, strict=True)], np.int64)
    sizes = np.array([len(response) for response in responses], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    flat = np.zeros(int(offsets[-1]), dtype=np.float32)
    total = np.zeros(len(responses), dtype=np.float64)
    if device is None:
        device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    batches = bucket(lengths, max_batch_tokens)
    for rows in batches:
        batch = pad(prompts, responses, rows, pad_id).to(device)
        tokens, exact = both_logprobs(model, batch, sampling, drawn=drawn)
        # Rows of the batch are scattered over the flat result; sums are taken in float64.
        where = np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row in rows])
        flat[where] = tokens.float().cpu().numpy()
        owner = np.repeat(np.arange(len(rows)), sizes[rows])
        values = exact.double().cpu().numpy()
        finite = np.where(np.isneginf(values), 0.0, values)
        sums = np.bincount(owner, weights=finite, minlength=len(rows))
        outside = np.bincount(owner, weights=np.isneginf(values), minlength=len(rows)) > 0
        total[rows] = np.where(outside, -np.inf, sums)
        if progress is not None:
            progress(int(lengths[rows].sum()))
    for _ in range(len(batches), forwards or 0):
        if not batches:  # nothing of its own: one token in vain
            one = [np.full(1, pad_id, dtype=np.int64)]
            batch = pad(one, one, np.zeros(1, dtype=np.int64), pad_id).to(device)
        both_logprobs(model, batch, sampling)
    model.train(was_training)
    return Scores(flat, total)
