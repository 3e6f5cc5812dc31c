"""Log-probs of chosen tokens without ever holding float32 logits of a whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHUNK_ELEMENTS = 1 << 24  # float32 values alive at a time: 64 MB


class _SelectedLogProb(torch.autograd.Function):
    """log softmax(logits / temperature)[target], in float32 a chunk at a time, both ways.

    Only the logits themselves (in the model's dtype) and one number a token are kept for the
    backward pass; the softmax is computed again there.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
        normaliser = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
        chosen = torch.empty_like(normaliser)
        for part in _parts(logits):
            scaled = logits[part].float() / temperature
            normaliser[part] = scaled.logsumexp(-1)
            chosen[part] = scaled.gather(-1, targets[part, None])[:, 0]
        ctx.save_for_backward(logits, targets, normaliser)
        ctx.temperature = temperature
        return chosen - normaliser

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = outputs
        logits, targets, normaliser = ctx.saved_tensors
        result = torch.empty_like(logits)
        for part in _parts(logits):
            softmax = (logits[part].float() / ctx.temperature - normaliser[part, None]).exp_()
            slope = softmax.mul_(-grad[part, None])
            slope.scatter_add_(-1, targets[part, None], grad[part, None])
            result[part] = (slope / ctx.temperature).to(logits.dtype)
        return result, None, None


def selected_logprob(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """log pi(target) at the temperature over the full vocabulary: [N, V], [N] -> [N] float32."""
    result: Tensor = _SelectedLogProb.apply(logits, targets, temperature)
    return result


@torch.no_grad()
def sampling_logprob(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    *,
    margin: float = 0.0,
    drawn: bool = False,
) -> Tensor:
    """log-prob of each target under what is really sampled from: temperature, top-k, nucleus.

    A target outside the nucleus has probability 0: -inf. `top_k` of 0 keeps all tokens. A target
    that more likely tokens miss by less than `margin` (rounding of two passes over one text), or
    that is known to have been `drawn`, is taken as inside.
    """
    result = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
    for part in _parts(logits):
        full = logits[part].float() / temperature
        scaled = keep_nucleus(full, top_p, top_k)
        chosen = scaled.gather(-1, targets[part, None])[:, 0]
        if margin or drawn:
            at = full.gather(-1, targets[part, None])
            ahead = (full.softmax(-1) * (full > at)).sum(-1)
            inside = torch.ones_like(ahead, dtype=torch.bool) if drawn else ahead < top_p + margin
            chosen = torch.where(inside, at[:, 0], chosen)
        result[part] = torch.clamp(chosen - scaled.logsumexp(-1), max=0.0)
    return result


def keep_nucleus(scaled: Tensor, top_p: float, top_k: int) -> Tensor:
    """Scaled logits [N, V] with everything outside top-k, then outside the nucleus, at -inf.

    The nucleus is the smallest set of most likely tokens that reaches top_p; the most likely
    token always stays. One rule serves sampling and scoring, or their ratio would not be 1.
    """
    vocabulary = scaled.shape[-1]
    if 0 < top_k < vocabulary:
        least = scaled.topk(top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if top_p < 1.0:
        ranked, order = scaled.sort(dim=-1, descending=True, stable=True)
        chance = ranked.softmax(-1)
        outside = chance.cumsum(-1) - chance >= top_p
        outside[:, 0] = False
        ranked = ranked.masked_fill(outside, -torch.inf)
        scaled = torch.empty_like(ranked).scatter_(-1, order, ranked)
    return scaled


def _parts(logits: Tensor) -> list[slice]:
    rows = max(1, _CHUNK_ELEMENTS // max(1, logits.shape[-1]))
    return [slice(start, start + rows) for start in range(0, len(logits), rows)]
