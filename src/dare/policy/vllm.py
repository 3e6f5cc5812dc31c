"""Responses sampled by vLLM, in this process (`colocate`) or by a server.

TRL's bridge (`trl.generation.VLLMGeneration`) is not used: it has one token budget and one seed for
all requests, serves a float32 policy in bfloat16, and believes every transfer of weights. Here
each rollout has its own budget and seed, the engine has the policy's dtype, and what the engine
says of a few tokens is compared with the policy after every transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dare.errors import require
from dare.policy.generate import Generated, GenerationRequest, GeneratorFailed
from dare.policy.score import Scores
from dare.policy.stale import Staleness, told_once
from dare.policy.vllm_colocated import Colocated, check_installed, check_ranks
from dare.policy.vllm_engine import Drawn, Engine, VllmSettings, Wanted, world
from dare.policy.vllm_server import Served
from dare_decoder import Sampling
from dare_decoder.batching import IntArray
from dare_decoder.model import without_adapters
from dare_decoder.paged.weights import is_plain_lora, weight_of

_PROBES, _PROBE_TOKENS = 4, 64  # prompts, and tokens of each, by which a transfer is verified
_HALF = (torch.bfloat16, torch.float16)


class _Policy(Protocol):
    """What it asks of the policy that it draws for."""

    ends: list[int]
    context: int
    precision: torch.dtype | None
    generation_rows: int
    progress: Callable[[int], Any] | None

    @property
    def module(self) -> Any: ...

    @property
    def device(self) -> torch.device: ...

    def readable(self) -> Any: ...

    def score(
        self, prompts: Sequence[IntArray], responses: Sequence[IntArray], sampling: Sampling
    ) -> Scores: ...


class VllmGenerator:
    """Samples from vLLM, which has the policy's weights of now whenever it draws."""

    def __init__(self, policy: _Policy, settings: VllmSettings) -> None:
        room = settings.max_model_length
        fix = f"the model's own context ends at {policy.context} tokens; choose that at most"
        require(room is None or room <= policy.context, "vllm_max_model_length", room, fix)
        if settings.mode == "colocate":
            check_ranks(settings.tensor_parallel_size, policy.device, world()[1])
            check_installed()
        else:
            fix = "is no address; choose one like http://host:8000"
            known = settings.server_url.startswith(("http://", "https://"))
            require(known, "vllm_server_base_url", settings.server_url, fix)
        check_weights(policy.module)
        self._policy, self._settings = policy, settings
        self._engine: Engine | None = None
        self._stale, self._verified = True, False
        self._largest_gap = _tolerance(self._dtype)
        self._probe: list[list[int]] = []
        self._staleness = Staleness()
        self.gap = 0.0
        """Mean difference of log-probs that the last transfer was verified by."""

    @property
    def _dtype(self) -> torch.dtype:
        """Of the engine: that of the policy's own passes."""
        own: torch.dtype = next(self._policy.module.parameters()).dtype
        return self._policy.precision or own

    def sync(self) -> None:
        """The engine's weights are out of date; they are sent when they are next needed."""
        self._stale = True

    def release(self) -> None:
        """In sleep mode the engine's memory is the update's."""
        if self._settings.enable_sleep_mode and self._engine is not None:
            self._engine.sleep()
            self._stale = True

    def close(self) -> None:
        """Stop the engine, or let go of the server."""
        engine, self._engine = self._engine, None
        self._stale, self._staleness = True, Staleness()
        if engine is not None:
            engine.close()

    @torch.no_grad()
    def generate(self, request: GenerationRequest, sampling: Sampling) -> Generated:
        """One response for each rollout; groups share the cache of their prompt."""
        model = self._policy.readable()  # gathered from all processes, also for one without any
        if not len(request.prompt_R) and world()[1] == 1:  # else all of them start engines together
            return Generated.of([], [])
        wanted = wanted_of(request)
        self._check_room(wanted)
        if self._engine is None:
            self._engine = self._start(model)
        if self._stale:
            self._engine.load(weights_of(model, self._dtype))
            self._stale, self._verified = False, False
        if not self._verified:
            self._verified = self._verify(self._engine, request.prompts if wanted else [])
        logprobs = self._settings.logprobs and request.logprobs
        drawn = self._engine.draw(wanted, sampling, self._policy.ends, logprobs)
        return generated_of(drawn, self._policy.ends, logprobs, self._policy.progress)

    def _start(self, model: Any) -> Engine:
        if self._settings.mode == "server":
            return Served(model, self._settings, dtype=self._dtype)
        return Colocated(
            model,
            self._settings,
            dtype=self._dtype,
            context=self._policy.context,
            rows=self._policy.generation_rows,
        )

    def _check_room(self, wanted: Sequence[Wanted]) -> None:
        room = self._settings.max_model_length
        longest = max((len(one.prompt) + one.max_tokens for one in wanted), default=0)
        fix = f"a prompt and the response it may get have {longest} tokens; raise it to that"
        require(room is None or longest <= room, "vllm_max_model_length", room, fix)

    def _verify(self, engine: Engine, prompts: Sequence[IntArray]) -> bool:
        """Compare what the engine says of a few tokens with what the policy says, if there are any.

        A transfer can report success and be wrong: packed weights, a cache of the old ones, a
        server that has another model. The tokens are those of the run's first prompts, always the
        same, so that an engine that is left behind is seen too, however little an update changes.
        """
        if not self._probe:
            texts = [[int(token) for token in one[:_PROBE_TOKENS]] for one in prompts[:_PROBES]]
            # Two tokens at least: the first has no log-prob.
            self._probe = [text if len(text) > 1 else text * 2 for text in texts]
        pairs = engine.read(self._probe)
        if not pairs:
            return False
        told = np.concatenate([np.array(found, np.float64) for _, found in pairs])
        own = self._policy.score(
            [np.array(text[:1], np.int64) for text, _ in pairs],
            [np.array(text[1:], np.int64) for text, _ in pairs],
            Sampling(1.0, 1.0, 0),
        ).logprobs.astype(np.float64)
        self.gap = float(np.abs(told - own).mean()) if len(told) == len(own) else float("nan")
        if not self.gap <= self._largest_gap:
            fix = (
                "the engine does not have the policy's weights after they were sent: log-probs of "
                f"{len(own)} tokens differ by {self.gap:.3g} on average, {self._largest_gap} would "
                "be rounding"
            )
            raise GeneratorFailed("generator", "vllm", fix)
        texts = [text for text, _ in pairs]
        kept = told_once(texts)
        if self._staleness.add(texts, told[kept], own[kept]):
            fix = (
                "the engine still has the weights of before after new ones were sent: its "
                f"log-probs of {len(kept)} tokens are those of the policy before its last update"
            )
            raise GeneratorFailed("generator", "vllm", fix)
        return True


def wanted_of(request: GenerationRequest) -> list[Wanted]:
    """What the request asks for; seeds depend on neither order, batch nor process."""
    prompts = [[int(token) for token in prompt] for prompt in request.prompts]
    pairs = zip(request.prompt_R.tolist(), request.max_tokens_R.tolist(), strict=True)
    return [
        Wanted(prompts[prompt], budget, int(request.rng(row).integers(1 << 62)))
        for row, (prompt, budget) in enumerate(pairs)
    ]


def generated_of(
    drawn: Sequence[Drawn],
    ends: Sequence[int],
    logprobs: bool,
    progress: Callable[[int], Any] | None = None,
) -> Generated:
    """The engine's responses as everybody has them."""
    tokens = [np.array(one.tokens, dtype=np.int64) for one in drawn]
    ended = [len(row) > 0 and int(row[-1]) in ends for row in tokens]
    if progress is not None:
        progress(sum(map(len, tokens)))
    told = [np.array(one.logprobs, dtype=np.float32) for one in drawn] if logprobs else None
    return Generated.of(tokens, ended, told)


def check_weights(model: Any) -> None:
    """Whether all of it can be sent: plain weights, and adapters that are one matrix."""
    for part in model.modules():
        if hasattr(part, "active_adapters") and hasattr(part, "get_base_layer"):
            fix = "adapters of this kind cannot be merged for vLLM; use plain LoRA on linear layers"
            require(is_plain_lora(part), "generator", type(part).__name__, fix)
    for name, weight in model.named_parameters():
        fix = f"{name} is quantised: its weights cannot be sent to vLLM; load it without"
        require(weight.is_floating_point(), "generator", "vllm", fix)


def _tolerance(dtype: torch.dtype) -> float:
    """Mean difference of log-probs that is still rounding: 16-bit logits differ by 0.01 or 0.02
    between two implementations, 32-bit ones by 1e-5; a transfer gone wrong by several."""
    return 0.1 if dtype in _HALF else 0.005


def weights_of(model: Any, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Name and value of each weight, in the names of a checkpoint, adapters merged into copies.

    The model is not changed: merging in place and back leaves a rest of rounding in 16 bits.
    """
    plain = without_adapters(model)
    parts = dict(plain.named_modules())
    for name, weight in plain.named_parameters():
        path, _, leaf = name.rpartition(".")
        words = path.split(".")
        if any(word.startswith("lora_") for word in words) or "original_module" in words:
            continue
        value = weight.detach()
        if words[-1] == "base_layer":
            words.pop()
            if leaf == "weight":
                value = weight_of(parts[".".join(words)], dtype)
        if "modules_to_save" in words:
            place = words.index("modules_to_save")
            del words[place : place + 2]  # and the adapter's name
        yield ".".join([*words, leaf]), value
    kept = plain.state_dict()
    for name, value in plain.named_buffers():
        if name in kept:
            yield name, value
