"""Mean token entropy of given responses: how uncertain the policy was while writing them (EDCO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dare.policy.batching import IntArray, Layout, layout_of
from dare.policy.logprobs import chunked_logits, parts
from dare.policy.score import at_head, has_plain_head, response_logits


def token_entropy(logits: Tensor, temperature: float) -> Tensor:
    """-sum p log p of each row at the temperature, in float32, a chunk of rows at a time."""
    result = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    for part in parts(logits, logits.shape[-1]):
        logprob = (logits[part].float() / temperature).log_softmax(-1)
        result[part] = -(logprob.exp() * logprob).sum(-1)
    return result


@torch.no_grad()
def mean_entropy(
    model: Any,
    prompts: Sequence[IntArray],
    responses: Sequence[IntArray],
    temperature: float,
    *,
    pad_id: int,
    max_batch_tokens: int = 16384,
    layout: Layout | None = None,
) -> NDArray[np.float64]:
    """One value a response, 0 for an empty one; the logits of a batch never exist at once."""
    sizes = np.array([len(response) for response in responses], dtype=np.int64)
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64) + sizes
    result = np.zeros(len(responses))
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()

    def chunked(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        found = [
            token_entropy(logits, temperature) for _, logits in chunked_logits(hidden, weight, bias)
        ]
        return torch.cat(found) if found else hidden.new_empty(0)

    layout = layout_of(model, pad_id) if layout is None else layout
    for rows in layout.split(lengths, max_batch_tokens):
        batch = layout.batch(prompts, responses, rows).to(device)
        if has_plain_head(model):
            values = at_head(model, batch, chunked)
        else:
            values = token_entropy(response_logits(model, batch), temperature)
        owner = np.repeat(np.arange(len(rows)), sizes[rows])
        sums = np.bincount(owner, weights=values.double().cpu().numpy(), minlength=len(rows))
        result[rows] = sums / np.maximum(sizes[rows], 1)
    model.train(was_training)
    return result
