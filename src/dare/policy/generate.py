"""Sampling responses: what is asked, what comes back, and the protocol of a generator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dare.curriculum.arrays import keyed_rng
from dare.curriculum.rollouts import Finish
from dare.errors import InvalidInput
from dare_decoder import Decoder, Request, Sampling
from dare_decoder.batching import IntArray


@dataclass(frozen=True)
class GenerationRequest(Request):
    """A request whose draws are keyed.

    `noise_R` names each rollout's own stream of random numbers within (seed, step, purpose), so
    that a rollout is the same whatever batch or process it is sampled in.
    """

    noise_R: IntArray
    seed: int
    step: int
    purpose: str = "generate"
    logprobs: bool = False
    """Whether log-probs of what is drawn are wanted, of a generator that is not the policy."""

    def rng(self, row: int) -> np.random.Generator:
        """The stream of one rollout: neither order, batch nor process change it."""
        return keyed_rng(self.seed, self.step, f"{self.purpose} {int(self.noise_R[row])}")


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


class TransformersGenerator(Decoder):
    """The policy's own model, sampled by `dare_decoder`; its weights are read anew when synced."""

    def generate(self, request: GenerationRequest, sampling: Sampling) -> Generated:
        """One response for each rollout. Where memory runs out, fewer are decoded at a time."""
        return Generated.of(*self.sample(request, sampling))

    sync = release = close = Decoder.forget
