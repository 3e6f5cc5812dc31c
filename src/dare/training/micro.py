"""A step's batch as weighted micro-batches, the same number on every process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dare.curriculum.batch import TrainBatch
from dare.policy.batching import IntArray, pad


def shares(lengths: IntArray, processes: int, micro_batches: int) -> list[list[IntArray]]:
    """Rows of each process and micro-batch: equal counts, similar lengths side by side.

    Rows are dealt longest first, back and forth over the processes, so that all of them have
    about as many tokens; micro-batches then cut each hand into stretches of like length.
    """
    order = np.argsort(-lengths, kind="stable")
    turns = np.arange(len(order)) % (2 * processes)
    owner = np.where(turns < processes, turns, 2 * processes - 1 - turns)
    hands = [order[owner == process] for process in range(processes)]
    return [np.array_split(hand, micro_batches) for hand in hands]


def micro_batch(
    batch: TrainBatch,
    prompts: list[IntArray],
    rows: IntArray,
    pad_id: int,
    reference: np.ndarray[Any, Any] | None = None,
) -> dict[str, Any]:
    """Tensors of one micro-batch. `prompts` holds the training prompt of every row of the batch."""
    rollouts = batch.rollouts
    offsets = rollouts.offsets
    responses = {
        int(row): rollouts.tokens[offsets[row] : offsets[row + 1]].astype(np.int64) for row in rows
    }
    padded = pad(prompts, responses, rows, pad_id)
    length = rollouts.length_R[rows]
    where = np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row in rows])

    def per_token(values: Any) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values, dtype=np.float32)[rows], length))

    result = {
        "padded": padded,
        "behaviour": torch.from_numpy(rollouts.logprobs[where]),
        "advantage": per_token(batch.advantage_R),
        "weight": per_token(batch.weight_R / np.maximum(rollouts.length_R, 1)),
        "clip_low": per_token(batch.clip_low_R),
        "clip_high": per_token(batch.clip_high_R),
    }
    if reference is not None:
        result["reference"] = torch.from_numpy(reference[where])
    return result
