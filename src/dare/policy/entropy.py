"""Mean token entropy of given responses: how uncertain the policy was while writing them (EDCO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dare.policy.batching import IntArray, bucket, pad
from dare.policy.logprobs import parts
from dare.policy.score import at_head, has_plain_head, response_logits


def token_entropy(logits: Tensor, temperature: float) -> Tensor:
    """-sum p log p of each row at the temperature, in float32."""
    logprob = (logits.float() / temperature).log_softmax(-1)
    return -(logprob.exp() * logprob).sum(-1)


@torch.inference_mode()
def mean_entropy(
    model: Any,
    prompts: Sequence[IntArray],
    responses: Sequence[IntArray],
    temperature: float,
    *,
    pad_id: int,
    max_batch_tokens: int = 16384,
) -> NDArray[np.float64]:
    """One value a response, 0 for an empty one; the logits of a batch never exist at once."""
    sizes = np.array([len(response) for response in responses], dtype=np.int64)
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64) + sizes
    result = np.zeros(len(responses))
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()

    def chunked(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        found = [
            token_entropy(nn.functional.linear(hidden[part], weight, bias), temperature)
            for part in parts(hidden, len(weight))
        ]
        return torch.cat(found) if found else hidden.new_empty(0)

    for rows in bucket(lengths, max_batch_tokens):
        batch = pad(prompts, responses, rows, pad_id).to(device)
        if has_plain_head(model):
            values = at_head(model, batch, chunked)
        else:
            values = token_entropy(response_logits(model, batch)[0], temperature)
        owner = np.repeat(np.arange(len(rows)), sizes[rows])
        sums = np.bincount(owner, weights=values.double().cpu().numpy(), minlength=len(rows))
        result[rows] = sums / np.maximum(sizes[rows], 1)
    model.train(was_training)
    return result
