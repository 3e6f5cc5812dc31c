"""Sampling responses: the Generator protocol and its transformers implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dare.curriculum.arrays import keyed_rng
from dare.curriculum.rollouts import Finish
from dare.policy.batching import IntArray
from dare.policy.decode import (
    Decoder,
    GrowingDecoder,
    StaticDecoder,
    can_capture,
    captured,
    prefill,
)
from dare.policy.logprobs import keep_nucleus
from dare.policy.score import Sampling


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


@dataclass(frozen=True)
class Generated:
    """Response tokens (the end token included where there was one) and why each ended."""

    tokens: list[IntArray]
    finish_R: IntArray


class Generator(Protocol):
    """Anything that samples responses from the policy as it is now."""

    def generate(self, request: GenerationRequest, sampling: Sampling) -> Generated:
        """One response for each rollout of the request."""
        ...


def sample_tokens(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """A token a row by inverting the cumulative distribution at `uniform`; greedy at T = 0."""
    if sampling.temperature == 0.0:
        return logits.argmax(-1)
    scaled = keep_nucleus(logits.float() / sampling.temperature, sampling.top_p, sampling.top_k)
    cumulative = scaled.softmax(-1).cumsum(-1)
    level = uniform[:, None] * cumulative[:, -1:]
    # right=True steps over tokens of probability 0, which repeat the sum before them.
    chosen = torch.searchsorted(cumulative, level, right=True)[:, 0]
    return chosen.clamp_(max=logits.shape[-1] - 1)


class TransformersGenerator:
    """Samples with a transformers model and its key-value cache.

    A prompt is read once and its cache row copied for each of its rollouts; rows that have ended
    leave the batch (see `decode`). `model` is a callable, since wrappers such as FSDP replace the
    module.
    """

    def __init__(
        self,
        model: Callable[[], Any],
        *,
        pad_id: int,
        end_ids: Sequence[int],
        max_rows: int = 512,
        graphs: bool = True,
        progress: Callable[[int], Any] | None = None,
    ) -> None:
        self._graphs = graphs
        self._model, self._pad, self._max_rows = model, pad_id, max_rows
        self._end = sorted(set(end_ids))
        self._progress = progress

    @torch.inference_mode()
    def generate(self, request: GenerationRequest, sampling: Sampling) -> Generated:
        """One response for each rollout, longest budgets together."""
        model = self._model()
        was_training = model.training
        model.eval()
        count = len(request.prompt_R)
        tokens: list[IntArray] = [np.empty(0, np.int64)] * count
        finish = np.full(count, int(Finish.LENGTH), dtype=np.int64)
        order = np.argsort(-request.max_tokens_R, kind="stable")
        for start in range(0, count, self._max_rows):
            rows = order[start : start + self._max_rows]
            for row, (ids, ended) in zip(
                rows.tolist(), self._decode(model, request, rows, sampling), strict=True
            ):
                tokens[row] = ids
                finish[row] = int(Finish.STOP if ended else Finish.LENGTH)
        model.train(was_training)
        return Generated(tokens, finish)

    def _decode(
        self, model: Any, request: GenerationRequest, rows: IntArray, sampling: Sampling
    ) -> list[tuple[IntArray, bool]]:
        device = next(model.parameters()).device
        budget = torch.from_numpy(request.max_tokens_R[rows]).to(device)
        longest = int(budget.max())
        noise = torch.from_numpy(self._noise(request, rows, longest)).to(device)
        end = torch.tensor(self._end, device=device)
        logits, decoder = self._prefill(model, request, rows, device, longest)
        written = torch.full((len(rows), longest), self._pad, dtype=torch.long, device=device)
        length = torch.zeros(len(rows), dtype=torch.long, device=device)
        stopped = torch.zeros(len(rows), dtype=torch.bool, device=device)
        alive = torch.arange(len(rows), device=device)
        for step in range(longest):
            token = sample_tokens(logits, noise[alive, step], sampling)
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
                decoder.keep(keep)
                alive, token = alive[keep], token[keep]
            logits = decoder.advance(token)
        sizes, ids, ended = length.tolist(), written.cpu().numpy(), stopped.tolist()
        return [(ids[row, :size].copy(), ended[row]) for row, size in enumerate(sizes)]

    def _prefill(
        self,
        model: Any,
        request: GenerationRequest,
        rows: IntArray,
        device: torch.device,
        longest: int,
    ) -> tuple[Tensor, Decoder]:
        """Logits and decoder of each row; every distinct prompt is read once."""
        distinct, inverse = np.unique(request.prompt_R[rows], return_inverse=True)
        width = max(len(request.prompts[prompt]) for prompt in distinct)
        ids = np.full((len(distinct), width), self._pad, dtype=np.int64)
        seen = np.zeros((len(distinct), width), dtype=np.int64)
        for place, prompt in enumerate(distinct.tolist()):
            tokens = request.prompts[prompt]
            ids[place, width - len(tokens) :] = tokens
            seen[place, width - len(tokens) :] = 1
        mask = torch.from_numpy(seen).to(device)
        logits, cache = prefill(model, torch.from_numpy(ids).to(device), mask)
        copies = torch.from_numpy(inverse.reshape(-1)).to(device)
        decoder: Decoder
        if self._graphs and can_capture(model):
            decoder = StaticDecoder(model, cache, mask, copies, longest, captured)
        else:
            decoder = GrowingDecoder(model, cache, mask, copies)
        return logits[copies], decoder

    @staticmethod
    def _noise(request: GenerationRequest, rows: IntArray, longest: int) -> Any:
        """Uniform numbers [rows, longest], each row from its own keyed stream."""
        noise = np.empty((len(rows), longest), dtype=np.float32)
        for place, row in enumerate(rows.tolist()):
            name = f"{request.purpose} {int(request.noise_R[row])}"
            keyed_rng(request.seed, request.step, name).random(out=noise[place], dtype=np.float32)
        return noise
