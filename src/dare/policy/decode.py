"""One more token for every row of a batch: with a cache that grows, or one of fixed size.

Both read each distinct prompt once and copy its part of the cache for its rollouts. The growing
cache drops a row as soon as it has ended. The fixed one keeps shapes and addresses, so that on a
GPU the forward pass is captured as a graph once and replayed, without the thousands of kernel
launches that small batches wait for; rows leave it when half of them have ended. (torch.compile
would fuse kernels too, but took minutes for each batch size.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from dare.policy.attention import grouped_attention

_ROUND = 256  # cache lengths are multiples of this, so that few shapes are compiled


class Decoder(Protocol):
    """A batch in the middle of its responses."""

    def advance(self, token: Tensor) -> Tensor:
        """Append a token to every row; returns the logits after it, [rows, V]."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        ...


def prefill(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, DynamicCache]:
    """Logits after each prompt (padded on the left), and the cache."""
    cache = DynamicCache(config=model.config)
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits[:, -1], cache


class GrowingDecoder:
    """Works for every model and device; nothing is computed for rows that have ended."""

    def __init__(self, model: Any, cache: DynamicCache, mask: Tensor, copies: Tensor) -> None:
        self._model, self._cache = model, cache
        cache.batch_select_indices(copies)
        self._mask = mask[copies]
        self._position = self._mask.sum(-1)

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


Step = Callable[[], Tensor]
"""The next logits [rows, 1, V] from tokens, mask and positions that were written in place."""
Prepare = Callable[[Callable[[], Tensor]], Step]


class StaticDecoder:
    """Fixed shapes, for a captured forward pass; rows that ended idle until half of them have."""

    def __init__(
        self,
        model: Any,
        cache: DynamicCache,
        mask: Tensor,
        copies: Tensor,
        room: int,
        prepare: Prepare,
    ) -> None:
        self._model, self._prepare = model, prepare
        self._length = -(-(mask.shape[1] + room) // _ROUND) * _ROUND
        self._seen = mask.shape[1]
        self._slot = copies  # set by the next line, like all that belongs to the rows
        self._fill(_held(cache, self._seen), mask.bool(), mask.sum(-1), copies)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only; the batch is halved when most of it has ended."""
        self._slot = self._slot[rows]
        if len(self._slot) <= len(self._position) // 2:
            held, mask = _held(self._cache, self._seen), self._mask[:, 0, 0, : self._seen]
            self._fill(held, mask, self._position[:, 0], self._slot)

    def advance(self, token: Tensor) -> Tensor:
        """Append a token to every row; returns the logits after it."""
        self._token[self._slot, 0] = token
        self._mask[:, :, :, self._seen] = True
        self._seen += 1
        logits = self._step()[self._slot, -1]  # a copy: the graph writes its next logits there
        self._position += 1
        return logits

    def _fill(
        self, held: list[tuple[Tensor, Tensor]], mask: Tensor, position: Tensor, rows: Tensor
    ) -> None:
        """New buffers for these rows, with what they have read so far."""
        size = len(rows)
        cache = StaticCache(config=self._model.config, max_cache_len=self._length)
        self._token = torch.zeros(size, 1, dtype=torch.long, device=mask.device)
        # Four dimensions: transformers then takes the mask as it is and looks at no value of it.
        whole = mask.new_zeros(size, 1, 1, self._length)
        whole[:, 0, 0, : mask.shape[1]] = mask[rows]
        start = position[rows][:, None].clone()
        self._cache, self._mask, self._position = cache, whole, start

        def forward() -> Tensor:
            with grouped_attention(self._model):
                logits: Tensor = self._model(
                    input_ids=self._token,
                    attention_mask=self._mask,
                    position_ids=self._position,
                    past_key_values=cache,
                    use_cache=True,
                ).logits
            return logits

        self._step = self._prepare(forward)
        cache.reset()  # preparing may have run the model
        for place, (keys, values) in enumerate(held):
            cache.update(keys[rows], values[rows], place)
        self._slot = torch.arange(size, device=mask.device)


def _held(cache: Any, seen: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of every layer for the tokens seen so far."""
    return [(layer.keys[:, :, :seen], layer.values[:, :, :seen]) for layer in cache.layers]


def as_is(forward: Callable[[], Tensor]) -> Step:
    """No graph: the forward pass, call by call."""
    return forward


def captured(forward: Callable[[], Tensor]) -> Step:
    """The forward pass as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries set themselves up before anything is recorded
        for _ in range(2):
            forward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = forward()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay


def can_capture(model: Any) -> bool:
    """On a GPU, with attention that takes a boolean mask and a cache of plain layers."""
    config = model.config.get_text_config()
    on_gpu = next(model.parameters()).device.type == "cuda"
    plain = getattr(config, "sliding_window", None) is None
    able = bool(getattr(model, "_can_compile_fullgraph", False))
    return on_gpu and plain and able and config._attn_implementation == "sdpa"
