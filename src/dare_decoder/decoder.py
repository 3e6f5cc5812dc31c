"""Responses of a transformers model: by the paged decoder, or by its own forward pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from dare_decoder.batching import IntArray
from dare_decoder.model import reading
from dare_decoder.paged.engine import Engine
from dare_decoder.paged.fit import check_numbers, room_for
from dare_decoder.paged.weights import DoesNotFit, Weights, read_weights
from dare_decoder.request import Request
from dare_decoder.sampling import Sampling, sample_tokens
from dare_errors import require

Responses = tuple[list[IntArray], NDArray[np.bool_]]
"""Token ids of each rollout (the end token included), and whether it ended by itself."""

_LOG = logging.getLogger(__name__)


class Decoder:
    """Samples with a transformers model, by the paged decoder where the model fits it.

    The paged decoder (`dare_decoder.paged`) runs on a GPU, on copies of the weights in the dtype
    computed in, which are made anew after `forget`. Models with other layers, and CPUs, take the
    model's own forward pass, with a cache that grows. `model` is a callable, since wrappers such as
    FSDP replace the module; `autocast` is the context of its mixed precision.
    """

    def __init__(
        self,
        model: Callable[[], Any],
        *,
        pad_id: int,
        end_ids: Sequence[int],
        max_rows: int = 512,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        paged: bool | None = None,
        page: int = 64,
        progress: Callable[[int], Any] | None = None,
    ) -> None:
        require(max_rows >= 1, "max_rows", max_rows, "must be at least 1")
        self._model, self._pad, self._max_rows = model, pad_id, max_rows
        self._end = sorted(set(end_ids))
        self._autocast, self._progress = autocast, progress
        self._paged, self._page = paged, page
        self._weights: Weights | None = None
        self._checked = False

    def forget(self) -> None:
        """Drop the copies of the weights: nothing else, cache or graphs, outlives a call."""
        self._weights = None

    def sample(self, request: Request, sampling: Sampling) -> Responses:
        """One response for each rollout. Where memory runs out, fewer are decoded at a time."""
        model = self._model()  # gathered from all processes, also for one without a rollout
        if not len(request.prompt_R):
            return [], np.zeros(0, dtype=bool)
        with reading(model):
            while self._max_rows > 1:
                with suppress(torch.OutOfMemoryError):
                    return self._sample(model, request, sampling)
                # Out here nothing of the failed try is held any more.
                self._max_rows = max(1, min(self._max_rows, len(request.prompt_R)) // 2)
                _LOG.warning("out of memory: decoding %d rollouts at a time", self._max_rows)
                torch.cuda.empty_cache()
            return self._sample(model, request, sampling)

    def _sample(self, model: Any, request: Request, sampling: Sampling) -> Responses:
        weights = self._copies(model)
        if weights is None:
            return self._by_model(model, request, sampling)
        rows, pages = room_for(weights, request, most=self._max_rows, page=self._page)
        engine = Engine(
            model,
            weights,
            request,
            self._end,
            sampling,
            rows=rows,
            pages=pages,
            page=self._page,
            autocast=self._autocast,
            progress=self._progress,
        )
        tokens, length, stopped = (part.cpu().numpy() for part in engine.run())
        written = [tokens[row, :size].astype(np.int64) for row, size in enumerate(length.tolist())]
        return written, stopped > 0

    def _copies(self, model: Any) -> Weights | None:
        """Weights for the paged decoder; None where it cannot be used (said once)."""
        device = next(model.parameters()).device
        if self._paged is None:
            self._paged = device.type == "cuda"
        if not self._paged or self._weights is not None:
            return self._weights
        try:
            with self._autocast():
                kind = torch.get_autocast_dtype(device.type)
                mixed = torch.is_autocast_enabled(device.type)
            weights = read_weights(model, kind if mixed else next(model.parameters()).dtype)
            if not self._checked:
                check_numbers(model, weights, self._autocast)
                self._checked = True
            self._weights = weights
        except DoesNotFit as reason:
            _LOG.warning(
                "responses are sampled by the model's own, slower forward pass: %s", reason
            )
            self._paged = False
        return self._weights

    def _by_model(self, model: Any, request: Request, sampling: Sampling) -> Responses:
        """Batches of the longest budgets together, each with a cache that grows."""
        count = len(request.prompt_R)
        tokens, ended = [np.empty(0, np.int64)] * count, np.zeros(count, dtype=bool)
        order = np.argsort(-request.max_tokens_R, kind="stable")
        for start in range(0, count, self._max_rows):
            rows = order[start : start + self._max_rows]
            with self._autocast():
                found, ended[rows] = self._batch(model, request, rows, sampling)
            for row, ids in zip(rows.tolist(), found, strict=True):
                tokens[row] = ids
        return tokens, ended

    def _batch(
        self, model: Any, request: Request, rows_R: IntArray, sampling: Sampling
    ) -> Responses:
        """These rollouts by the model's own forward pass: any architecture and device.

        Each distinct prompt is read once and its part of the cache copied for its rollouts. A row
        leaves the batch as soon as it has ended.
        """
        device = next(model.parameters()).device
        budget = torch.from_numpy(request.max_tokens_R[rows_R]).to(device)
        longest = int(budget.max())
        uniform = torch.from_numpy(request.uniform(rows_R, longest)).to(device)
        end = torch.tensor(self._end, device=device)
        cache = _GrowingCache(model, request.prompts, request.prompt_R[rows_R], self._pad, device)
        logits, rows = cache.first, len(rows_R)
        written = torch.full((rows, longest), self._pad, dtype=torch.long, device=device)
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
            if self._progress is not None:
                self._progress(len(alive))
            left = int(going.sum())
            if left == 0:
                break
            if left < len(alive):
                keep = going.nonzero()[:, 0]
                cache.keep(keep)
                alive, token = alive[keep], token[keep]
            logits = cache.advance(token)
        ids = written.cpu().numpy()
        found = [ids[row, :size].copy() for row, size in enumerate(length.tolist())]
        return found, stopped.cpu().numpy()


class _GrowingCache:
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
