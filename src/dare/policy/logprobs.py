"""Log-probs of chosen tokens without ever holding float32 logits of a whole batch."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

_CHUNK_ELEMENTS = 1 << 21  # logits alive at a time: 8 MB in float32, on a GPU 270
_FEW = 256  # most likely tokens among which the edge of the nucleus is looked for first


@dataclass(frozen=True)
class Sampling:
    """The distribution that responses are drawn from."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0


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

    A chunk of logits is computed, used and dropped; the backward pass computes it once more. Both
    passes compute in one dtype (see `compute_dtype`) whatever autocast says around them, and
    gradients have the dtypes of what they are gradients of. The second output has none.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        heat: float,
        sampling: Sampling | None,
    ) -> tuple[Tensor, Tensor | None]:
        normaliser = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        chosen = torch.empty_like(normaliser)
        kept = None if sampling is None else normaliser.new_empty(2, len(targets))
        for part, logits in chunked_logits(hidden, weight, bias):
            if kept is not None and sampling is not None:
                kept[:, part] = nucleus_at(logits, targets[part], sampling)
            normaliser[part], chosen[part] = _normalised(logits, targets[part], heat)
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser)
        ctx.heat, ctx.dtype = heat, compute_dtype(weight)
        if kept is not None:
            ctx.mark_non_differentiable(kept)
        return chosen - normaliser, kept

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normaliser = ctx.saved_tensors
        grad = outputs[0] / ctx.heat
        unit: Tensor | None = None
        if ctx.dtype == torch.float16:
            # A loss that is a mean over many tokens has slopes too small for float16.
            unit = grad.abs().amax().clamp_(min=torch.finfo(torch.float32).tiny)
            grad = grad / unit
        wanted = ctx.needs_input_grad
        hidden_slope = torch.empty_like(hidden) if wanted[0] else None
        weight_slope = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
        bias_slope = torch.zeros_like(bias, dtype=torch.float32) if wanted[2] else None
        with torch.autocast(hidden.device.type, enabled=False):
            cast = weight.to(ctx.dtype)
            for part, logits in chunked_logits(hidden, cast, bias, dtype=ctx.dtype):
                slope = _slope(logits, targets[part], normaliser[part], grad[part], ctx.heat)
                if bias_slope is not None:
                    bias_slope += slope.sum(0, dtype=torch.float32)
                if weight_slope is not None:
                    _add_product(weight_slope, slope, hidden[part], ctx.dtype)
                if hidden_slope is not None:
                    product = slope.to(ctx.dtype) @ cast
                    # In float32 before it shrinks again: hidden may itself be in float16.
                    hidden_slope[part] = product if unit is None else product.float() * unit
        if unit is not None:
            for slope_sum in (weight_slope, bias_slope):
                if slope_sum is not None:
                    slope_sum *= unit
        return (
            hidden_slope,
            None if weight_slope is None else weight_slope.to(weight.dtype),
            None if bias_slope is None else bias_slope.to(bias.dtype),
            None,
            None,
            None,
        )


def _normalised(logits: Tensor, targets: Tensor, heat: float) -> tuple[Tensor, Tensor]:
    """log of the normaliser and the scaled logit of each target, in float32."""
    kernels = gpu_kernels() if logits.is_cuda else None
    if kernels is not None:
        normaliser, chosen, _ = kernels.normalise(logits, targets, heat)
        return normaliser, chosen
    scaled = logits.float().div_(heat)
    return scaled.logsumexp(-1), scaled.gather(-1, targets[:, None])[:, 0]


def _slope(
    logits: Tensor, targets: Tensor, normaliser: Tensor, grad: Tensor, heat: float
) -> Tensor:
    """grad times the slope of the log-prob in the scaled logits; the logits are not kept."""
    kernels = gpu_kernels() if logits.is_cuda else None
    if kernels is not None:
        slope: Tensor = kernels.slope_(logits, targets, normaliser, grad, heat)
        return slope
    softmax = logits.float().div_(heat).sub_(normaliser[:, None]).exp_()
    return softmax.mul_(-grad[:, None]).scatter_add_(-1, targets[:, None], grad[:, None])


def _add_product(total: Tensor, slope: Tensor, hidden: Tensor, dtype: torch.dtype) -> None:
    """total [V, H] += slope.T [V, N] @ hidden [N, H], with sums in float32 that are never rounded.

    On a GPU the factors are in the dtype computed in, and no second [V, H] is made.
    """
    if total.is_cuda and dtype in (torch.bfloat16, torch.float16):
        torch.addmm(total, slope.to(dtype).T, hidden.to(dtype), torch.float32, out=total)
    else:
        total.addmm_(slope.T, hidden.float())


def compute_dtype(weight: Tensor) -> torch.dtype:
    """What a product with this weight is computed in: autocast's dtype, or else its own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def chunked_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, *, dtype: torch.dtype | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Stretches of rows and their logits, few enough at a time; the weight is cast only once."""
    dtype = compute_dtype(weight) if dtype is None else dtype
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    for part in parts(hidden, len(weight)):
        yield part, linear(hidden[part].to(dtype), weight, bias)


def head_logprob(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    sampling: Sampling | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`selected_logprob` of linear(hidden, weight, bias): [N, H], [V, H], [V], [N] -> [N].

    With `sampling`, `nucleus_at` of the same logits and targets too; without, None.
    """
    found: tuple[Tensor, Tensor | None] = _HeadLogProb.apply(
        hidden, weight, bias, targets, temperature, sampling
    )
    return found


@torch.no_grad()
def nucleus_at(logits: Tensor, targets: Tensor, sampling: Sampling) -> Tensor:
    """[2, N]: `log_kept_mass`, and 1 where the target lies outside the nucleus, 0 elsewhere."""
    outside = torch.zeros(len(logits), dtype=torch.float32, device=logits.device)
    if sampling.top_p < 1.0:
        ahead = _ahead(logits, targets, sampling.temperature)
        outside = (ahead >= sampling.top_p + rounding_margin(logits.dtype)).float()
    return torch.stack([log_kept_mass(logits, sampling), outside])


def rounding_margin(dtype: torch.dtype) -> float:
    """Probability by which two passes over one text may differ as to where the nucleus ends."""
    return 1e-4 if dtype == torch.float32 else 0.03


def _ahead(logits: Tensor, targets: Tensor, heat: float) -> Tensor:
    """Probability of all tokens that are likelier than the target."""
    kernels = gpu_kernels() if logits.is_cuda else None
    if kernels is not None:
        found: Tensor = kernels.normalise(logits, targets, heat, ahead=True)[2]
        return found
    scaled = logits.float() / heat
    likelier = scaled > scaled.gather(-1, targets[:, None])
    return (scaled.softmax(-1) * likelier).sum(-1)


@torch.no_grad()
def log_kept_mass(logits: Tensor, sampling: Sampling) -> Tensor:
    """log of the probability that top-k and nucleus leave: [N, V] -> [N] float32, 0 for all of it.

    Less it, the log-prob over the full vocabulary is that of the distribution sampled from, for a
    token that was drawn from it.
    """
    kept = torch.zeros(len(logits), dtype=torch.float32, device=logits.device)
    if sampling.top_p == 1.0 and sampling.top_k == 0:
        return kept
    kernels = gpu_kernels() if logits.is_cuda else None
    if kernels is not None:
        found: Tensor = kernels.nucleus_log_mass(logits, *astuple(sampling))
        return found.clamp_(max=0.0)
    for part in parts(logits, logits.shape[-1]):
        scaled = logits[part].float() / sampling.temperature
        whole = scaled.logsumexp(-1)
        kept[part] = keep_nucleus(scaled, sampling.top_p, sampling.top_k).logsumexp(-1) - whole
    return kept.clamp_(max=0.0)


@functools.cache
def gpu_kernels() -> Any:
    """`logit_kernels`, or None where Triton is not installed."""
    try:
        return importlib.import_module("dare.policy.logit_kernels")
    except ImportError:
        return None


@torch.no_grad()
def both_of(
    logits: Tensor, targets: Tensor, sampling: Sampling, *, margin: float, drawn: bool
) -> Tensor:
    """[2, N]: `selected_logprob` and `sampling_logprob`, in one pass where a GPU has kernels."""
    heat, top_p, top_k = astuple(sampling)
    kernels = gpu_kernels() if logits.is_cuda else None
    if kernels is None:
        full = selected_logprob(logits, targets, heat)
        if top_p == 1.0 and top_k == 0:
            return torch.stack([full, full])
        exact = sampling_logprob(logits, targets, heat, top_p, top_k, margin=margin, drawn=drawn)
        return torch.stack([full, exact])
    normaliser, chosen, ahead = kernels.normalise(logits, targets, heat, ahead=not drawn)
    full = chosen - normaliser
    exact = (full - log_kept_mass(logits, sampling)).clamp_(max=0.0)
    if not drawn and top_p < 1.0:
        exact = exact.masked_fill(ahead >= top_p + margin, -torch.inf)
    if not drawn and top_k:
        for part in parts(logits, logits.shape[-1]):
            scaled = logits[part].float() / heat
            inside = _ranks_within(scaled, scaled.gather(-1, targets[part, None]), top_k, margin)
            exact[part] = exact[part].masked_fill(~inside, -torch.inf)
    return torch.stack([full, exact])


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
    sampling = Sampling(temperature, top_p, top_k)
    result = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
    for part in parts(logits, logits.shape[-1]):
        full = logits[part].float() / temperature
        at = full.gather(-1, targets[part, None])
        value = at[:, 0] - full.logsumexp(-1) - log_kept_mass(logits[part], sampling)
        if not drawn:
            if margin:
                inside = (full.softmax(-1) * (full > at)).sum(-1) < top_p + margin
                inside &= _ranks_within(full, at, top_k, margin)
            else:
                kept = keep_nucleus(full, top_p, top_k)
                inside = kept.gather(-1, targets[part, None])[:, 0].isfinite()
            value = value.masked_fill(~inside, -torch.inf)
        result[part] = value.clamp_(max=0.0)
    return result


def _ranks_within(scaled: Tensor, at: Tensor, top_k: int, margin: float) -> Tensor:
    """Whether fewer than `top_k` tokens are ahead of each target by more than `margin`."""
    if top_k == 0:
        return torch.ones(len(scaled), dtype=torch.bool, device=scaled.device)
    return (scaled > at + margin).sum(-1) < top_k


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
    limit = _CHUNK_ELEMENTS
    if rows.device.type != "cpu":  # kernels hold them in 16 bits, once
        limit *= 16 if gpu_kernels() is None else 64
    size = max(1, limit // max(1, vocabulary))
    return [slice(start, start + size) for start in range(0, len(rows), size)]
