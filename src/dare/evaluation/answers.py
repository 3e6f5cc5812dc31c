"""Answers of a policy to problems: any Generator, greedy or sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dare.curriculum.rollouts import Finish
from dare.errors import require
from dare.evaluation.problems import Problem
from dare.policy.generate import GenerationRequest, Generator
from dare.policy.logprobs import Sampling
from dare.templates import Template
from dare.templates.encode import encode

MOST_SAMPLES = 4096


@dataclass(frozen=True)
class Answers:
    """Responses to one problem, with their tokens and why each ended."""

    texts: list[str]
    tokens: list[int]
    finish: list[str]


@dataclass(frozen=True)
class Drawing:
    """How responses are drawn, checked before a model is loaded."""

    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 3072
    seed: int = 0

    def __post_init__(self) -> None:
        many, warm = self.samples, self.temperature
        require(1 <= many <= MOST_SAMPLES, "--samples", many, f"must be 1 to {MOST_SAMPLES}")
        known = 0 <= warm < float("inf")
        require(known, "--temperature", warm, "must be a number from 0 up; 0 is greedy")
        fix = "greedy responses would all be the same; use --samples 1 or a temperature"
        require(many == 1 or warm > 0, "--temperature", warm, fix)
        require(0 < self.top_p <= 1, "--top-p", self.top_p, "must be in (0, 1]")
        require(self.max_tokens >= 1, "--max-tokens", self.max_tokens, "must be at least 1")
        require(self.seed >= 0, "--seed", self.seed, "must not be negative")

    @property
    def sampling(self) -> Sampling:
        """The distribution; a nucleus makes no difference to the likeliest token."""
        return Sampling(self.temperature, 1.0 if self.temperature == 0.0 else self.top_p)


@dataclass(frozen=True)
class Respondent:
    """A policy that answers problems; `generator` may be any, `context` is what it can read."""

    generator: Generator
    tokenizer: Any
    context: int
    drawing: Drawing = Drawing()

    def answer(
        self, name: str, places: Sequence[int], problems: Sequence[Problem], template: Template
    ) -> list[Answers]:
        """Responses to these problems, which stand at `places` of the benchmark `name`.

        Each response has its own random numbers, named by benchmark, place and sample: it is the
        same in whatever batch it is drawn, and the first of 64 samples are those of a run with 8.
        A prompt that leaves no room gets empty responses that ended for that reason.
        """
        most, count = self.drawing.max_tokens, self.drawing.samples
        prompts = [encode(self.tokenizer, template.messages(one.shown)) for one in problems]
        room = [min(most, self.context - len(prompt)) for prompt in prompts]
        fits = [row for row, tokens in enumerate(room) if tokens >= 1]
        found = [Answers([""] * count, [0] * count, ["prompt"] * count) for _ in prompts]
        if not fits:
            return found
        rows_R = np.repeat(np.arange(len(fits)), count)
        noise_P = np.array([places[row] * MOST_SAMPLES for row in fits], dtype=np.int64)
        request = GenerationRequest(
            prompts=[prompts[row] for row in fits],
            prompt_R=rows_R,
            max_tokens_R=np.array([room[row] for row in fits], dtype=np.int64)[rows_R],
            noise_R=noise_P[rows_R] + np.tile(np.arange(count), len(fits)),
            seed=self.drawing.seed,
            step=0,
            purpose=f"evaluate {name}",
        )
        made = self.generator.generate(request, self.drawing.sampling)
        texts = self.tokenizer.batch_decode(made.tokens, skip_special_tokens=True)
        finish = ["length" if int(why) == Finish.LENGTH else "stop" for why in made.finish_R]
        for place, row in enumerate(fits):
            own = slice(place * count, (place + 1) * count)
            sizes = [len(tokens) for tokens in made.tokens[own]]
            found[row] = Answers(texts[own], sizes, finish[own])
        return found
