"""Decoding by the model's own forward pass: any architecture and device, with a cache that grows.

Each distinct prompt is read once and its part of the cache copied for its rollouts. A row leaves
the batch as soon as it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from dare.policy.batching import IntArray
from dare.policy.sampling import Sampling, sample_tokens


def decode_growing(
    model: Any,
    prompts: Sequence[IntArray],
    prompt_R: IntArray,
    max_tokens_R: IntArray,
    noise: Any,
    ends: list[int],
    sampling: Sampling,
    *,
    pad_id: int,
    progress: Callable[[int], Any] | None = None,
) -> list[tuple[IntArray, bool]]:
    """Token ids of each rollout, and whether it ended by itself."""
    device = next(model.parameters()).device
    budget = torch.from_numpy(max_tokens_R).to(device)
    longest = int(budget.max())
    uniform = torch.from_numpy(noise).to(device)
    end = torch.tensor(ends, device=device)
    decoder = _Decoder(model, prompts, prompt_R, pad_id, device)
    logits, rows = decoder.first, len(prompt_R)
    written = torch.full((rows, longest), pad_id, dtype=torch.long, device=device)
    length = torch.zeros(rows, dtype=torch.long, device=device)
    stopped = torch.zeros(rows, dtype=torch.bool, device=device)
    alive = torch.arange(rows, device=device)
    for step in range(longest):
        token = sample_tokens(logits, uniform[alive, step], sampling)
        written[alive, step] = token
        length[alive] = step + 1
        at_end = torch.isin(token, end)
        stopped[alive] = at_end
        going = ~at_end & (budget[alive] > step + 1)
        if progress is not None:
            progress(len(alive))
        left = int(going.sum())
        if left == 0:
            break
        if left < len(alive):
            keep = going.nonzero()[:, 0]
            decoder.keep(keep)
            alive, token = alive[keep], token[keep]
        logits = decoder.advance(token)
    sizes, ids, ended = length.tolist(), written.cpu().numpy(), stopped.tolist()
    return [(ids[row, :size].copy(), ended[row]) for row, size in enumerate(sizes)]


class _Decoder:
    """Works for every model and device; nothing is computed for rows that have ended."""

    def __init__(
        self,
        model: Any,
        prompts: Sequence[IntArray],
        prompt_R: IntArray,
        pad_id: int,
        device: torch.device,
    ) -> None:
        distinct, inverse = np.unique(prompt_R, return_inverse=True)
        width = max(len(prompts[prompt]) for prompt in distinct)
        ids = np.full((len(distinct), width), pad_id, dtype=np.int64)
        seen = np.zeros_like(ids)
        for place, prompt in enumerate(distinct.tolist()):
            tokens = prompts[prompt]
            ids[place, width - len(tokens) :] = tokens  # padded on the left
            seen[place, width - len(tokens) :] = 1
        mask = torch.from_numpy(seen).to(device)
        self._model, self._cache = model, DynamicCache(config=model.config)
        output = model(
            input_ids=torch.from_numpy(ids).to(device),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        copies = torch.from_numpy(inverse.reshape(-1)).to(device)
        self.first: Tensor = output.logits[copies, -1]
        """Logits of the first token of each row."""
        self._mask, self._position = mask, mask.sum(-1)
        self.keep(copies)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self._cache.batch_select_indices(rows)
        self._mask, self._position = self._mask[rows], self._position[rows]

    def advance(self, token: Tensor) -> Tensor:
        """Append a token to every row; returns the logits after it."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(token), 1)], dim=1)
        output = self._model(
            input_ids=token[:, None],
            attention_mask=self._mask,
            position_ids=self._position[:, None],
            past_key_values=self._cache,
            use_cache=True,
        )
        self._position = self._position + 1
        logits: Tensor = output.logits[:, -1]
        return logits
