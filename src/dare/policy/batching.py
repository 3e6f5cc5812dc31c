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
    """Each prompt with its response right behind it, padded on the right.

    In a causal model nothing attends to what comes later, so the padding needs no mask: attention
    can take its fast causal path, and a batch is as wide as its longest sequence, not as the
    longest prompt and the longest response together. `targets` [B, T] are the columns from the
    first response on, `response_mask` marks the real response tokens among them; `rows` says which
    sequences these are.
    """

    rows: IntArray
    input_ids: Tensor
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
    the limit gets a batch of its own. A batch also ends where sequences get a fifth shorter than
    its longest, once it is an eighth full: from there on padding costs more than a pass of its own.
    """
    order = np.argsort(-lengths, kind="stable")
    batches: list[IntArray] = []
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        size = max(1, max_tokens // longest)
        alike = np.searchsorted(-lengths[order[start : start + size]], -0.8 * longest, "right")
        size = min(size, max(int(alike), -(-max_tokens // (8 * longest))))
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
    starts = [len(prompts[row]) for row in rows.tolist()]
    ends = [start + len(responses[row]) for start, row in zip(starts, rows.tolist(), strict=True)]
    first = min(starts)
    width = max(first + 1, *ends)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    for place, (row, start, end) in enumerate(zip(rows.tolist(), starts, ends, strict=True)):
        ids[place, :start] = prompts[row]
        ids[place, start:end] = responses[row]
    column = np.arange(first, width)
    real = (column >= np.array(starts)[:, None]) & (column < np.array(ends)[:, None])
    return PaddedBatch(
        rows=rows,
        input_ids=torch.from_numpy(ids),
        targets=torch.from_numpy(ids[:, first:]),
        response_mask=torch.from_numpy(real),
    )
