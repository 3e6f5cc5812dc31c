"""Sampling responses: the Generator protocol and its transformers implementation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dare.curriculum.arrays import keyed_rng
from dare.curriculum.rollouts import Finish
from dare.errors import InvalidInput
from dare.policy.batching import IntArray, reading
from dare.policy.growing import decode_growing
from dare.policy.paged.engine import Engine
from dare.policy.paged.fit import check_numbers, room_for
from dare.policy.paged.weights import DoesNotFit, Weights, read_weights
from dare.policy.sampling import Sampling

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class GenerationRequest:
    """What to sample: distinct prompts, and for each rollout its prompt and token budget.

    `noise_R` names each rollout's own stream of random numbers within (seed, step, purpose), so
    that a rollout is the same whatever batch or process it is sampled in.
    """

    prompts: Sequence[IntArray]
    prompt_R: IntArray
    max_tokens_R: IntArray
    noise_R: IntArray
    seed: int
    step: int
    purpose: str = "generate"
    logprobs: bool = False
    """Whether log-probs of what is drawn are wanted, of a generator that is not the policy."""


@dataclass(frozen=True)
class Generated:
    """Response tokens (the end token included where there was one) and why each ended.

    `logprobs` are those of the tokens under the distribution that they were drawn from, where the
    request wanted them and the generator has a model of its own, which may differ from the policy.
    """

    tokens: list[IntArray]
    finish_R: IntArray
    logprobs: list[NDArray[np.float32]] | None = None

    @classmethod
    def of(
        cls,
        tokens: list[IntArray],
        ended: Sequence[bool] | NDArray[np.bool_],
        logprobs: list[NDArray[np.float32]] | None = None,
    ) -> Generated:
        """Responses of which each has `ended` by itself or was cut off."""
        finish = np.where(np.asarray(ended, dtype=bool), int(Finish.STOP), int(Finish.LENGTH))
        return cls(tokens, finish.astype(np.int64), logprobs)


class GeneratorFailed(InvalidInput):
    """A generator that died, hangs, or draws from other weights than the policy's."""


class Generator(Protocol):
    """Anything that samples responses from the policy as it is now."""

    def generate(self, request: GenerationRequest, sampling: Sampling) -> Generated:
        """One response for each rollout of the request."""
        ...

    def sync(self) -> None:
        """The policy's weights have changed: sample from the new ones from here on."""
        ...

    def release(self) -> None:
        """Give memory back; the next `generate` takes what it needs again."""
        ...

    def close(self) -> None:
        """The run is over: stop processes, free everything."""
        ...


class TransformersGenerator:
    """Samples with a transformers model, by the paged decoder where the model fits it.

    The paged decoder (`dare.policy.paged`) runs on a GPU, on 16-bit copies of the weights that are
    made anew after each update. Models with other layers, and CPUs, take the model's own forward
    pass (`dare.policy.growing`). `model` is a callable, since wrappers such as FSDP replace the
    module; `autocast` is the context of its mixed precision.
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
        if max_rows < 1:
            raise InvalidInput("generation_rows", max_rows, "must be at least 1")
        self._model, self._pad, self._max_rows = model, pad_id, max_rows
        self._end = sorted(set(end_ids))
        self._autocast, self._progress = autocast, progress
        self._paged, self._page = paged, page
        self._weights: Weights | None = None
        self._checked = False

    def sync(self) -> None:
        """Drop the copies of the weights: nothing else, cache or graphs, outlives a call."""
        self._weights = None

    release = close = sync

    def generate(self, request: GenerationRequest, sampling: Sampling) -> Generated:
        """One response for each rollout. Where memory runs out, fewer are decoded at a time."""
        model = self._model()  # gathered from all processes, also for one without a rollout
        if not len(request.prompt_R):
            return Generated.of([], [])
        with reading(model):
            while self._max_rows > 1:
                with suppress(torch.OutOfMemoryError):
                    return self._sample(model, request, sampling)
                # Out here nothing of the failed try is held any more.
                self._max_rows = max(1, min(self._max_rows, len(request.prompt_R)) // 2)
                _LOG.warning("out of memory: decoding %d rollouts at a time", self._max_rows)
                torch.cuda.empty_cache()
            return self._sample(model, request, sampling)

    def _sample(self, model: Any, request: GenerationRequest, sampling: Sampling) -> Generated:
        weights = self._copies(model)
        if weights is None:
            return self._by_model(model, request, sampling)
        rows, pages = room_for(
            weights, request.prompts, request.prompt_R, request.max_tokens_R,
            most=self._max_rows, page=self._page,
        )  # fmt: skip
        device = weights.head.device
        everyone = np.arange(len(request.prompt_R))
        longest = int(request.max_tokens_R.max())
        engine = Engine(
            model,
            weights,
            list(request.prompts),
            request.prompt_R,
            request.max_tokens_R,
            torch.from_numpy(noise_of(request, everyone, longest)).to(device),
            self._end,
            sampling,
            rows=rows,
            pages=pages,
            page=self._page,
            graphs=device.type == "cuda",
            autocast=self._autocast,
            progress=self._progress,
        )
        tokens, length, stopped = (part.cpu().numpy() for part in engine.run())
        written = [tokens[row, :size].astype(np.int64) for row, size in enumerate(length.tolist())]
        return Generated.of(written, stopped > 0)

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

    def _by_model(self, model: Any, request: GenerationRequest, sampling: Sampling) -> Generated:
        """Batches of the longest budgets together, each with a cache that grows."""
        count = len(request.prompt_R)
        tokens, ended = [np.empty(0, np.int64)] * count, [False] * count
        order = np.argsort(-request.max_tokens_R, kind="stable")
        for start in range(0, count, self._max_rows):
            rows = order[start : start + self._max_rows]
            noise = noise_of(request, rows, int(request.max_tokens_R[rows].max()))
            with self._autocast():
                found = decode_growing(
                    model, list(request.prompts), request.prompt_R[rows],
                    request.max_tokens_R[rows], noise, self._end, sampling,
                    pad_id=self._pad, progress=self._progress,
                )  # fmt: skip
            for row, one in zip(rows.tolist(), found, strict=True):
                tokens[row], ended[row] = one
        return Generated.of(tokens, ended)


def noise_of(request: GenerationRequest, rows: IntArray, longest: int) -> Any:
    """Uniform numbers [rows, longest], each row from its own keyed stream."""
    noise = np.empty((len(rows), longest), dtype=np.float32)
    for place, row in enumerate(rows.tolist()):
        name = f"{request.purpose} {int(request.noise_R[row])}"
        keyed_rng(request.seed, request.step, name).random(out=noise[place], dtype=np.float32)
    return noise
