"""A step's batch as mini-batches and micro-batches, the same number on every process.

The optimiser steps once a mini-batch; a micro-batch is what one pass reads of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dare.curriculum.arrays import Array
from dare.curriculum.batch import TrainBatch
from dare_decoder.batching import IntArray, Layout


def mini_batches(
    rows: IntArray, group_R: IntArray, count: int, rng: np.random.Generator
) -> list[IntArray]:
    """The rows dealt into `count` mini-batches with about as many in each. Some may be empty.

    Groups stay whole, and go, largest first and in random order among equals, to the mini-batch
    with the fewest rows; where there are fewer groups than mini-batches, the largest are halved.
    """
    if count == 1:
        return [rows]
    parts = [rows[group_R[rows] == group] for group in rng.permutation(np.unique(group_R[rows]))]
    while 0 < len(parts) < count and max(map(len, parts)) > 1:
        largest = parts.pop(max(range(len(parts)), key=lambda place: len(parts[place])))
        parts += [largest[: len(largest) // 2], largest[len(largest) // 2 :]]
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    dealt = _lightest_first(sizes, np.argsort(-sizes, kind="stable"), count)
    return [
        np.sort(np.concatenate([rows[:0], *(parts[place] for place in hand.tolist())]))
        for hand in dealt
    ]


def shares(
    lengths: IntArray, processes: int, micro_batches: int, *, packed: bool = False
) -> list[list[IntArray]]:
    """Rows of each process and micro-batch, with about as many tokens in each. Some may be empty.

    Packed, every row in turn, longest first, goes to the micro-batch with the fewest tokens.
    Padded, rows are dealt longest first, back and forth over the processes, and each hand is cut
    into stretches of like length, which need the least padding.
    """
    order = np.argsort(-lengths, kind="stable")
    if packed:
        bins = _lightest_first(lengths, order, processes * micro_batches)
        return [bins[process::processes] for process in range(processes)]
    turns = np.arange(len(order)) % (2 * processes)
    owner = np.where(turns < processes, turns, 2 * processes - 1 - turns)
    hands = [order[owner == process] for process in range(processes)]
    return [_stretches(hand, lengths[hand], micro_batches) for hand in hands]


def _lightest_first(lengths: IntArray, order: IntArray, count: int) -> list[IntArray]:
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, place) for place in range(count)]
    for row in order.tolist():
        tokens, place = heapq.heappop(heap)
        bins[place].append(row)
        heapq.heappush(heap, (tokens + int(lengths[row]), place))
    return [np.array(rows, dtype=np.int64) for rows in bins]


def _stretches(hand: IntArray, lengths: IntArray, count: int) -> list[IntArray]:
    """The hand cut where its tokens are nearest to equal parts."""
    ends = np.cumsum(lengths)
    middle = ends - lengths / 2  # a row belongs where its middle is
    total = ends[-1] if len(ends) else 0
    cuts = np.searchsorted(middle, total * np.arange(1, count) / count)
    return np.split(hand, cuts)


def micro_batch(
    batch: TrainBatch,
    prompts: list[IntArray],
    rows: IntArray,
    layout: Layout,
    weight_R: Array,
    flat: Mapping[str, Array] | None = None,
) -> dict[str, Any]:
    """Tensors of one micro-batch. `prompts` holds the training prompt of every row of the batch,
    `weight_R` the weight of each of its tokens; `flat` more values of all tokens, by name."""
    rollouts = batch.rollouts
    offsets = rollouts.offsets
    responses = {
        int(row): rollouts.tokens[offsets[row] : offsets[row + 1]].astype(np.int64) for row in rows
    }
    length = rollouts.length_R[rows]
    where = np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row in rows])

    def per_token(values: Any) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values, dtype=np.float32)[rows], length))

    result = {
        "rows": rows,
        "batch": layout.batch(prompts, responses, rows),
        "behaviour": torch.from_numpy(rollouts.logprobs[where]),
        "advantage": per_token(batch.advantage_R),
        "weight": per_token(weight_R),
        "clip_low": per_token(batch.clip_low_R),
        "clip_high": per_token(batch.clip_high_R),
        "length": torch.from_numpy(length),
    }
    for name, values in (flat or {}).items():
        result[name] = torch.from_numpy(values[where])
    return result
