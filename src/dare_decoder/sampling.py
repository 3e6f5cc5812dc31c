"""The distribution that responses are drawn from, and a draw from it by one uniform number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_FEW = 256  # most likely tokens among which the edge of the nucleus is looked for first
COLDEST = 1e-3
"""The least temperature but 0: far below it, logits divided by it are no numbers."""


@dataclass(frozen=True)
class Sampling:
    """Temperature, nucleus and top-k; `top_k` of 0 keeps all tokens."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0


def sample_tokens(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """A token a row by inverting the cumulative distribution at `uniform`; greedy at T = 0."""
    if sampling.temperature == 0.0:
        return logits.argmax(-1)
    scaled = keep_nucleus(logits.float() / sampling.temperature, sampling.top_p, sampling.top_k)
    cumulative = scaled.softmax(-1).cumsum(-1)
    level = uniform[:, None] * cumulative[:, -1:]
    # right=True steps over tokens of probability 0, which repeat the sum before them.
    chosen = torch.searchsorted(cumulative, level, right=True)[:, 0]
    return chosen.clamp_(max=logits.shape[-1] - 1)


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
