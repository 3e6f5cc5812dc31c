"""Drawing a token from logits: temperature, top-k and nucleus, by one uniform number."""

from __future__ import annotations

import torch
from torch import Tensor

from dare.policy.logprobs import Sampling, keep_nucleus


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
