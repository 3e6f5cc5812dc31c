"""Ragged prompts and responses as batches: packed one behind another, or padded to one width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dare_decoder.packed_attention import can_pack

IntArray = NDArray[np.int64]
Ragged = Sequence[IntArray] | Mapping[int, IntArray]


@dataclass(frozen=True)
class TokenBatch:
    """Each prompt with its response right behind it. `rows` says which sequences these are.

    Packed, input_ids are [1, N], all sequences in one row, and position_ids begin anew with each.
    Padded, they are [B, L] and position_ids None; padding is on the right, where a causal model
    never looks from the left, so it needs no mask.

    edges          [B + 1] int32: sums of the lengths so far, 0 at first
    longest        tokens of the longest sequence
    predicting     [N'] where in the flattened input_ids each response token is predicted
    targets        [N'] those tokens, response after response
    """

    rows: IntArray
    input_ids: Tensor
    position_ids: Tensor | None
    edges: Tensor
    longest: int
    predicting: Tensor
    targets: Tensor

    @property
    def packed(self) -> bool:
        """Whether all sequences are in one row."""
        return self.position_ids is not None

    def to(self, device: torch.device | str) -> TokenBatch:
        """The batch on another device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def model_inputs(self) -> dict[str, Any]:
        """What the model is called with."""
        given: dict[str, Any] = {"input_ids": self.input_ids, "use_cache": False}
        if self.packed:
            given["position_ids"] = self.position_ids
            given["cu_seq_lens_q"] = given["cu_seq_lens_k"] = self.edges
            given["max_length_q"] = given["max_length_k"] = self.longest
        return given

    def padding_mask(self) -> Tensor:
        """[B, L] of a padded batch: 1 where there is a token."""
        column = torch.arange(self.input_ids.shape[1], device=self.input_ids.device)
        return (column < self.edges.diff()[:, None]).long()


@dataclass(frozen=True)
class Layout:
    """How sequences become batches: packed, or padded with `pad_id`."""

    packed: bool
    pad_id: int

    def split(self, lengths: IntArray, max_tokens: int) -> list[IntArray]:
        """Rows of each batch of at most `max_tokens`, with padding where there is any."""
        return fill(lengths, max_tokens) if self.packed else bucket(lengths, max_tokens)

    def batch(self, prompts: Ragged, responses: Ragged, rows: IntArray) -> TokenBatch:
        """One batch of these rows."""
        if self.packed:
            return pack(prompts, responses, rows)
        return pad(prompts, responses, rows, self.pad_id)

    def batches(
        self,
        prompts: Sequence[IntArray],
        responses: Sequence[IntArray],
        max_tokens: int,
        device: torch.device,
    ) -> Iterator[TokenBatch]:
        """All of them in batches of at most `max_tokens`, on the device."""
        pairs = zip(prompts, responses, strict=True)
        lengths = np.array([len(prompt) + len(response) for prompt, response in pairs], np.int64)
        for rows in self.split(lengths, max_tokens):
            yield self.batch(prompts, responses, rows).to(device)


def layout_of(model: Any, pad_id: int) -> Layout:
    """Packed on a GPU where the model's attention allows it, padded elsewhere.

    On a CPU attention is padded in any case (see `packed_attention`), and batches of like lengths
    have little padding to save.
    """
    on_gpu = next(model.parameters()).is_cuda
    return Layout(packed=on_gpu and can_pack(model), pad_id=pad_id)


def fill(lengths: IntArray, max_tokens: int) -> list[IntArray]:
    """Rows cut into batches of at most `max_tokens` tokens, longest first.

    So running out of memory shows on the first batch. A sequence longer than the limit gets a
    batch of its own.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    batches: list[IntArray] = []
    start = 0
    while start < len(order):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + max_tokens, "right")))
        batches.append(order[start:stop])
        start = stop
    return batches


def bucket(lengths: IntArray, max_tokens: int) -> list[IntArray]:
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
        batches.append(order[start : start + size])
        start += size
    return batches


def pack(prompts: Ragged, responses: Ragged, rows: IntArray) -> TokenBatch:
    """One packed batch of these rows of `prompts` (none of them empty) and `responses`."""
    edges, answers = _sizes(prompts, responses, rows)
    ids = np.concatenate([part[row] for row in rows.tolist() for part in (prompts, responses)])
    position = np.arange(len(ids)) - np.repeat(edges[:-1], np.diff(edges))
    predicting = _counted(edges[1:] - answers - 1, answers)
    return TokenBatch(
        rows=rows,
        input_ids=torch.from_numpy(ids)[None],
        position_ids=torch.from_numpy(position)[None],
        edges=torch.from_numpy(edges.astype(np.int32)),
        longest=int(np.diff(edges).max()),
        predicting=torch.from_numpy(predicting),
        targets=torch.from_numpy(ids[predicting + 1]),
    )


def pad(prompts: Ragged, responses: Ragged, rows: IntArray, pad_id: int) -> TokenBatch:
    """One padded batch of these rows of `prompts` (none of them empty) and `responses`.

    It is as wide as its longest sequence, not as the longest prompt and the longest response
    together.
    """
    edges, answers = _sizes(prompts, responses, rows)
    lengths = np.diff(edges)
    width = int(lengths.max())
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    for place, (row, length, answer) in enumerate(
        zip(rows.tolist(), lengths.tolist(), answers.tolist(), strict=True)
    ):
        ids[place, : length - answer] = prompts[row]
        ids[place, length - answer : length] = responses[row]
    predicting = _counted(width * np.arange(len(rows)) + lengths - answers - 1, answers)
    return TokenBatch(
        rows=rows,
        input_ids=torch.from_numpy(ids),
        position_ids=None,
        edges=torch.from_numpy(edges.astype(np.int32)),
        longest=width,
        predicting=torch.from_numpy(predicting),
        targets=torch.from_numpy(ids.reshape(-1)[predicting + 1]),
    )


def _sizes(prompts: Ragged, responses: Ragged, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Sums of the lengths so far, and the lengths of the responses alone."""
    answers = np.array([len(responses[row]) for row in rows.tolist()], dtype=np.int64)
    lengths = np.array([len(prompts[row]) for row in rows.tolist()], dtype=np.int64) + answers
    return np.concatenate([[0], np.cumsum(lengths)]), answers


def _counted(starts: IntArray, sizes: IntArray) -> IntArray:
    """start, start + 1, ... for each start, as many as its size says."""
    before = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
