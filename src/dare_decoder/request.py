"""What a decoder is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dare_decoder.batching import IntArray


@dataclass(frozen=True)
class Request(ABC):
    """What to sample: distinct prompts, and for each rollout its prompt and token budget.

    Who asks says where each rollout's random numbers come from: the same ones give the same rollout
    again, whatever else is sampled with it.
    """

    prompts: Sequence[IntArray]
    prompt_R: IntArray
    max_tokens_R: IntArray

    @abstractmethod
    def rng(self, row: int) -> np.random.Generator:
        """The stream of one rollout, from its beginning."""

    def uniform(self, rows: IntArray, longest: int) -> NDArray[np.float32]:
        """Uniform numbers [rows, longest], each row from its own stream."""
        noise = np.empty((len(rows), longest), dtype=np.float32)
        for place, row in enumerate(rows.tolist()):
            self.rng(row).random(out=noise[place], dtype=np.float32)
        return noise
