"""What every engine of vLLM has in common: how it is run, what it is asked, which versions fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import torch
from packaging.version import InvalidVersion, Version
from torch import Tensor

from dare.errors import require
from dare_decoder import Sampling

VERSIONS = ("0.26", "0.32")
"""From the first to below the second; the extra `vllm` of the package says the same."""
INSTALL = f"pip install 'vllm>={VERSIONS[0]},<{VERSIONS[1]}'"


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


def options_of(sampling: Sampling, ends: Sequence[int], logprobs: bool) -> dict[str, Any]:
    """What all responses of a call share, under vLLM's names."""
    return {
        **asdict(sampling),
        "stop_token_ids": list(ends),
        "ignore_eos": True,  # `ends` has it, where it is one
        "logprobs": 0 if logprobs else None,
    }


def check_version(found: str, name: str) -> None:
    """Whether this version fits; builds for a CUDA of theirs (+cu130) do too."""
    least, below = map(Version, VERSIONS)
    fix = f"{name} {found} does not fit: {INSTALL.replace('vllm', name)}"
    try:
        fits = least <= Version(Version(found).base_version) < below
    except InvalidVersion:  # of a build that was given none
        fits = False
    require(fits, "generator", "vllm", fix)


def world() -> tuple[int, int]:
    """This process's number, and how many there are."""
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
