"""Log-probs of chosen tokens without ever holding float32 logits of a whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

_CHUNK_ELEMENTS = 1 << 21  # float32 values alive at a time: 8 MB, on a GPU 16 times that
_FEW = 256  # most likely tokens among which the edge of the nucleus is looked for first


class _SelectedLogProb(torch.autograd.Function):
    """log softmax(logits / temperature)[target], in float32 a chunk at a time, both ways.

    Only the logits themselves (in the model's dtype) and one number a token are kept for the
    backward pass; the softmax is computed again there.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
        normaliser = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
        chosen = torch.empty_like(normaliser)
        for part in parts(logits, logits.shape[-1]):
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
        for part in parts(logits, logits.shape[-1]):
            softmax = (logits[part].float() / ctx.temperature - normaliser[part, None]).exp_()
            slope = softmax.mul_(-grad[part, None])
            slope.scatter_add_(-1, targets[part, None], grad[part, None])
            result[part] = (slope / ctx.temperature).to(logits.dtype)
        return result, None, None


def selected_logprob(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """log pi(target) at the temperature over the full vocabulary: [N, V], [N] -> [N] float32."""
    result: Tensor = _SelectedLogProb.apply(logits, targets, temperature)
    return result


class _HeadLogProb(torch.autograd.Function):
    """`_SelectedLogProb` with the output layer inside: [N, V] logits never exist as a whole.

    A chunk of logits is computed, used and dropped; the backward pass computes it once more.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, heat: float
    ) -> Tensor:
        normaliser = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        chosen = torch.empty_like(normaliser)
        for part in parts(hidden, len(weight)):
            scaled = linear(hidden[part], weight, bias).float().div_(heat)
            torch.logsumexp(scaled, -1, out=normaliser[part])
            chosen[part] = scaled.gather(-1, targets[part, None])[:, 0]
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser)
        ctx.heat = heat
        return chosen - normaliser

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = outputs
        hidden, weight, bias, targets, normaliser = ctx.saved_tensors
        slopes = [
            torch.zeros_like(value, dtype=torch.float32) if needed else None
            for value, needed in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        ]
        for part in parts(hidden, len(weight)):
            scaled = linear(hidden[part], weight, bias).float().div_(ctx.heat)
            slope = scaled.sub_(normaliser[part, None]).exp_().mul_(-grad[part, None] / ctx.heat)
            slope.scatter_add_(-1, targets[part, None], grad[part, None] / ctx.heat)
            if slopes[2] is not None:
                slopes[2] += slope.sum(0)
            slope = slope.to(weight.dtype)
            if slopes[0] is not None:
                slopes[0][part] = slope @ weight
            if slopes[1] is not None:
                slopes[1] += slope.T @ hidden[part]
        given = (hidden, weight, bias)
        return (
            *(
                None if slope is None else slope.to(value.dtype)
                for slope, value in zip(slopes, given, strict=True)
            ),
            None,
            None,
        )


def head_logprob(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
) -> Tensor:
    """`selected_logprob` of linear(hidden, weight, bias): [N, H], [V, H], [V], [N] -> [N]."""
    result: Tensor = _HeadLogProb.apply(hidden, weight, bias, targets, temperature)
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
    for part in parts(logits, logits.shape[-1]):
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

    The nucleus is the smallest set of most likely tokens that reaches top_p, with all that tie
    with its last. One rule serves sampling and scoring, or their ratio would not be 1.
    """
    vocabulary = scaled.shape[-1]
    if 0 < top_k < vocabulary:
        least = scaled.topk(top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if top_p < 1.0:
        edge = _edge_of_few if vocabulary > 16 * _FEW else _edge_of_all
        scaled = scaled.masked_fill(scaled < edge(scaled, top_p), -torch.inf)
    return scaled


def _edge_of_all(scaled: Tensor, top_p: float) -> Tensor:
    """The smallest scaled logit in the nucleus of each row [N, 1], from the whole row sorted."""
    ranked = _descending(scaled)
    return _edge(ranked, ranked.softmax(-1), top_p)


def _edge_of_few(scaled: Tensor, top_p: float) -> Tensor:
    """As `_edge_of_all`, sorting whole only the rows whose most likely tokens fall short of top_p.

    Which way a row goes depends on that row alone, whatever batch it is in.
    """
    ranked = scaled.topk(_FEW, dim=-1).values
    whole = scaled.sub(ranked[:, :1]).exp_().sum(-1, keepdim=True)
    chance = ranked.sub(ranked[:, :1]).exp_().div_(whole)
    edge = _edge(ranked, chance, top_p)
    reached = chance.cumsum(-1)[:, -1] >= top_p  # false for NaN too
    short = (~reached).nonzero()[:, 0]
    if len(short):
        edge[short] = _edge_of_all(scaled[short], top_p)
    return edge


def _edge(ranked: Tensor, chance: Tensor, top_p: float) -> Tensor:
    """The last of the ranked logits with less than top_p before it, and at least the first."""
    inside = (chance.cumsum(-1).sub_(chance) < top_p).sum(-1, keepdim=True).clamp_(min=1)
    return ranked.gather(-1, inside - 1)


def _descending(values: Tensor) -> Tensor:
    """Each row sorted, largest first. NumPy's sort is ten times as fast as torch's on a CPU."""
    if values.device.type == "cpu":
        ranked = torch.from_numpy(np.sort(values.neg().numpy(), axis=-1)).neg_()
    else:
        ranked = values.sort(dim=-1, descending=True).values
    return ranked


def parts(rows: Tensor, vocabulary: int) -> list[slice]:
    """Stretches of rows whose float32 logits are few enough to hold at a time."""
    limit = _CHUNK_ELEMENTS if rows.device.type == "cpu" else 16 * _CHUNK_ELEMENTS
    size = max(1, limit // max(1, vocabulary))
    return [slice(start, start + size) for start in range(0, len(rows), size)]
