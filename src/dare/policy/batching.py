"""Ragged prompts and responses as padded batches, bucketed by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class PaddedBatch:
    """Prompts padded on the left, responses on the right: every response starts in one column.

    `response_mask` [B, T] marks real response tokens; `rows` says which sequences these are.
    """

    rows: IntArray
    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    targets: Tensor
    response_mask: Tensor

    def to(self, device: torch.device | str) -> PaddedBatch:
        """The batch on another device."""
        tensors = {
            name: getattr(self, name).to(device, non_blocking=True)
            for name in self.__dataclass_fields__
            if name != "rows"
        }
        return PaddedBatch(rows=self.rows, **tensors)


def bucket(lengths: IntArray, max_tokens: int, max_rows: int | None = None) -> list[IntArray]:
    """Rows grouped so that similar lengths share a batch of at most `max_tokens` padded tokens.

    Longest first, so that running out of memory shows on the first batch. A sequence longer than
    the limit gets a batch of its own.
    """
    order = np.argsort(-lengths, kind="stable")
    batches: list[IntArray] = []
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        size = max(1, max_tokens // longest)
        if max_rows is not None:
            size = min(size, max_rows)
        batches.append(order[start : start + size])
        start += size
    return batches


def pad(
    prompts: Sequence[IntArray] | Mapping[int, IntArray],
    responses: Sequence[IntArray] | Mapping[int, IntArray],
    rows: IntArray,
    pad_id: int,
) -> PaddedBatch:
    """One padded batch of these rows of `prompts` and `responses`."""
    left = max(len(prompts[row]) for row in rows.tolist())
    right = max(1, max(len(responses[row]) for row in rows.tolist()))
    ids = np.full((len(rows), left + right), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), left + right), dtype=np.int64)
    for place, row in enumerate(rows.tolist()):
        prompt, response = prompts[row], responses[row]
        ids[place, left - len(prompt) : left] = prompt
        ids[place, left : left + len(response)] = response
        mask[place, left - len(prompt) : left + len(response)] = 1
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    return PaddedBatch(
        rows=rows,
        input_ids=torch.from_numpy(ids),
        attention_mask=torch.from_numpy(mask),
        position_ids=torch.from_numpy(positions),
        targets=torch.from_numpy(ids[:, left:]),
        response_mask=torch.from_numpy(mask[:, left:].astype(bool)),
    )
