"""One token for every slot: the model's layers over pages, then a draw (see `kernels`, `plain`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from dare_decoder.paged.state import Outputs, Slots
from dare_decoder.paged.weights import Weights
from dare_decoder.sampling import Sampling

_LONG = 256  # tokens of context that are worth a program of their own


@dataclass(frozen=True)
class Cache:
    """Keys and values of every layer in pages: [layers, 2, pages, shared heads, page, depth]."""

    pages: Tensor
    angles: tuple[Tensor, Tensor]

    @property
    def page(self) -> int:
        """Tokens a page holds."""
        return int(self.pages.shape[4])


class Step:
    """The forward pass of one token a slot for a fixed number of slots, ready to be captured."""

    def __init__(
        self, weights: Weights, cache: Cache, slots: Slots, outputs: Outputs, sampling: Sampling
    ) -> None:
        self._weights, self._cache = weights, cache
        self._slots, self._outputs, self._sampling = slots, outputs, sampling
        self._ops = operations(weights.head.device)
        self._scratch = self._split()

    def __call__(self) -> None:
        """Read each living slot's token, draw its next one and write it down."""
        self._ops.sample(self.logits(), self._slots, self._outputs, self._sampling)

    def logits(self) -> Tensor:
        """Logits after each slot's token, whose keys and values are now in the pages."""
        weights, slots, ops = self._weights, self._slots, self._ops
        residual = embedding(slots.token, weights.embedding)
        rows, kind = len(residual), weights.dtype
        normal = residual.new_empty(residual.shape, dtype=kind)
        query = normal.new_empty(rows, weights.heads, weights.depth)
        mixed = torch.empty_like(query)
        active = normal.new_empty(rows, weights.layers[0].down.shape[1])
        delta: Tensor | None = None
        for layer, (keys, values) in zip(weights.layers, self._cache.pages, strict=True):
            ops.add_norm(residual, delta, layer.norm, weights.eps, normal)
            qkv = linear(normal, layer.qkv, layer.qkv_bias)
            angles, norms = self._cache.angles, layer.head_norms
            ops.rotate_store(qkv, query, keys, values, angles, norms, slots, weights.eps)
            ops.attend(query, keys, values, slots, weights.scale, mixed, self._scratch)
            delta = linear(mixed.view(rows, -1), layer.out, layer.out_bias)
            ops.add_norm(residual, delta, layer.mlp_norm, weights.eps, normal)
            ops.silu_mul(linear(normal, layer.gate_up, layer.gate_up_bias), active)
            delta = linear(active, layer.down, layer.down_bias)
        ops.add_norm(residual, delta, weights.norm, weights.eps, normal)
        return linear(normal, weights.head, weights.head_bias)

    def _split(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Room for long rows to be attended to in several programs, where few rows leave it."""
        weights, device = self._weights, self._weights.head.device
        if device.type != "cuda":
            return None
        rows, longest = self._slots.table.shape[0], self._slots.table.shape[1] * self._cache.page
        able = torch.cuda.get_device_properties(device).multi_processor_count
        splits = min(2 * able // max(1, rows * weights.shared), longest // _LONG, 16)
        if splits <= 1:
            return None
        shape = (rows, weights.heads, splits)
        high, total = (torch.empty(shape, dtype=torch.float32, device=device) for _ in range(2))
        return high.new_empty(*shape, weights.depth), high, total


def operations(device: torch.device) -> Any:
    """The kernels where there is a GPU, plain torch elsewhere."""
    if device.type == "cuda":
        from dare_decoder.paged import kernels

        return kernels
    from dare_decoder.paged import plain

    return plain
