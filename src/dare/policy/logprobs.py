"""Log-probs of chosen tokens without ever holding float32 logits of a whole batch."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from dare_decoder.of_triton import of_triton
from dare_decoder.sampling import Sampling, keep_nucleus

_LOG = logging.getLogger(__name__)
_CHUNK_ELEMENTS = 1 << 21  # logits alive at a time: 8 MB in float32, on a GPU 270


class _HeadLogProb(torch.autograd.Function):
    """log softmax(logits / heat)[target], in float32 a chunk at a time, both ways, with the output
    layer inside: [N, V] logits never exist as a whole.

    A chunk of logits is computed, used and dropped; the backward pass computes it once more. Both
    passes compute in one dtype (see `compute_dtype`) whatever autocast says around them, and
    gradients have the dtypes of what they are gradients of. The second output has none. Without a
    weight `hidden` are the logits themselves, of heads that are no plain layer.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        targets: Tensor,
        heat: float,
        sampling: Sampling | None,
    ) -> tuple[Tensor, Tensor | None]:
        normaliser = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        chosen = torch.empty_like(normaliser)
        kept = None if sampling is None else normaliser.new_empty(2, len(targets))
        for part, logits in chunked_logits(hidden, weight, bias):
            found = _normalised(logits, targets[part], heat, ahead=kept is not None)
            normaliser[part], chosen[part], ahead = found
            if kept is not None and sampling is not None:
                margin = rounding_margin(logits.dtype)
                outside = _outside(logits, chosen[part], ahead, sampling, margin)
                kept[:, part] = torch.stack([log_kept_mass(logits, sampling), outside.float()])
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser)
        ctx.heat, ctx.dtype = heat, hidden.dtype if weight is None else compute_dtype(weight)
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
            cast = None if weight is None else weight.to(ctx.dtype)
            for part, logits in chunked_logits(hidden, cast, bias, dtype=ctx.dtype):
                logits = logits.clone() if cast is None else logits  # it is overwritten
                slope = _slope(logits, targets[part], normaliser[part], grad[part], ctx.heat)
                if bias_slope is not None:
                    bias_slope += slope.sum(0, dtype=torch.float32)
                if weight_slope is not None:
                    _add_product(weight_slope, slope, hidden[part], ctx.dtype)
                if hidden_slope is not None:
                    product = slope if cast is None else slope.to(ctx.dtype) @ cast
                    # In float32 before it shrinks again: hidden may itself be in float16.
                    hidden_slope[part] = product if unit is None else product.float() * unit
        for slope_sum in (weight_slope, bias_slope):
            if unit is not None and slope_sum is not None:
                slope_sum *= unit
        slopes = zip((weight_slope, bias_slope), (weight, bias), strict=True)
        of_head = [None if slope is None else slope.to(one.dtype) for slope, one in slopes]
        return (hidden_slope, *of_head, None, None, None)


def head_logprob(
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    sampling: Sampling | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log pi(target) at the temperature over the full vocabulary, where the logits are
    linear(hidden, weight, bias) or without a weight `hidden`: [N, H], [V, H], [V], [N] -> [N].

    With `sampling` also [2, N], without a gradient: `log_kept_mass`, and 1 where the target lies
    outside of what is sampled from, 0 elsewhere.
    """
    found: tuple[Tensor, Tensor | None] = _HeadLogProb.apply(
        hidden, weight, bias, targets, temperature, sampling
    )
    return found


def chunked_logits(
    hidden: Tensor, weight: Tensor | None, bias: Tensor | None, *, dtype: torch.dtype | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Stretches of rows and their logits, few enough at a time; the weight is cast only once.

    Without a weight `hidden` are the logits.
    """
    if weight is None:
        for part in _parts(hidden, hidden.shape[-1]):
            yield part, hidden[part].contiguous()
        return
    dtype = compute_dtype(weight) if dtype is None else dtype
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    for part in _parts(hidden, len(weight)):
        yield part, linear(hidden[part].to(dtype), weight, bias)


def _parts(rows: Tensor, vocabulary: int) -> list[slice]:
    """Stretches of rows whose float32 logits are few enough to hold at a time."""
    limit = _CHUNK_ELEMENTS
    if rows.device.type != "cpu":  # kernels hold them in 16 bits, once
        limit *= 16 if _kernels(rows) is None else 64
    size = max(1, limit // max(1, vocabulary))
    return [slice(start, start + size) for start in range(0, len(rows), size)]


def compute_dtype(weight: Tensor) -> torch.dtype:
    """What a product with this weight is computed in: autocast's dtype, or else its own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def rounding_margin(dtype: torch.dtype) -> float:
    """Probability by which two passes over one text may differ as to where the nucleus ends."""
    return 1e-4 if dtype == torch.float32 else 0.03


# ---- of a chunk of logits ----


@torch.no_grad()
def both_of(
    logits: Tensor, targets: Tensor, sampling: Sampling, *, margin: float, drawn: bool
) -> Tensor:
    """[2, N]: log-prob of each target over the full vocabulary, and under what is really sampled
    from: temperature, top-k, nucleus.

    A target outside the latter has probability 0: -inf. One that is outside by less than `margin`
    (rounding of two passes over one text), or known to have been `drawn`, is taken as inside.
    """
    normaliser, chosen, ahead = _normalised(logits, targets, sampling.temperature, ahead=not drawn)
    full = chosen - normaliser
    exact = (full - log_kept_mass(logits, sampling)).clamp_(max=0.0)
    if not drawn:
        exact.masked_fill_(_outside(logits, chosen, ahead, sampling, margin), -torch.inf)
    return torch.stack([full, exact])


@torch.no_grad()
def log_kept_mass(logits: Tensor, sampling: Sampling) -> Tensor:
    """log of the probability that top-k and nucleus leave: [N, V] -> [N] float32, 0 for all of it.

    Less it, the log-prob over the full vocabulary is that of the distribution sampled from, for a
    token that was drawn from it.
    """
    kernels, (heat, top_p, top_k) = _kernels(logits), astuple(sampling)
    if top_p == 1.0 and top_k == 0:
        return torch.zeros(len(logits), dtype=torch.float32, device=logits.device)
    if kernels is not None:
        found: Tensor = kernels.nucleus_log_mass(logits, heat, top_p, top_k)
    else:
        scaled = logits.float() / heat
        found = keep_nucleus(scaled, top_p, top_k).logsumexp(-1) - scaled.logsumexp(-1)
    return found.clamp_(max=0.0)


def _outside(
    logits: Tensor, chosen: Tensor, ahead: Tensor, sampling: Sampling, margin: float
) -> Tensor:
    """Whether each target is outside of what is sampled from, by the `margin` at least."""
    heat, top_p, top_k = astuple(sampling)
    found = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    share: Tensor | float = top_p
    if top_k:
        found = (logits.float() / heat > chosen[:, None] + margin).sum(-1) >= top_k
        share = top_p * log_kept_mass(logits, replace(sampling, top_p=1.0)).exp()
    return found | (ahead >= share + margin) if top_p < 1.0 else found


def _normalised(
    logits: Tensor, targets: Tensor, heat: float, *, ahead: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """log of the normaliser, the scaled logit of each target and, where asked for, the probability
    of all tokens that are likelier; in float32."""
    kernels = _kernels(logits)
    if kernels is not None:
        found: tuple[Tensor, Tensor, Tensor] = kernels.normalise(logits, targets, heat, ahead)
        return found
    scaled = logits.float() / heat
    at = scaled.gather(-1, targets[:, None])
    before = (scaled.softmax(-1) * (scaled > at)).sum(-1) if ahead else at[:, 0]
    return scaled.logsumexp(-1), at[:, 0], before


def _slope(
    logits: Tensor, targets: Tensor, normaliser: Tensor, grad: Tensor, heat: float
) -> Tensor:
    """grad times the slope of the log-prob in the scaled logits; the logits are not kept."""
    kernels = _kernels(logits)
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


def _kernels(logits: Tensor) -> Any:
    """`logit_kernels` for logits on a GPU; None elsewhere, or where Triton cannot be used."""
    return _triton() if logits.is_cuda else None


@functools.cache
def _triton() -> Any:
    """Asked for on a GPU alone. A first small call tells whether Triton can compile."""
    try:
        kernels = importlib.import_module("dare_decoder.logit_kernels")
        target = torch.zeros(1, dtype=torch.long, device="cuda")
        kernels.normalise(torch.zeros(1, 8, device="cuda"), target, 1.0)
    except Exception as error:  # of Triton and of its compiler, which have many kinds
        reason = of_triton(error)
        if reason is None:
            raise
        _LOG.warning("log-probs are computed by plain torch, which takes more memory: %s", reason)
        return None
    return kernels
