"""Where responses come from: a policy, greedy or sampled, or a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dare.curriculum.rollouts import Finish
from dare.errors import require
from dare.evaluation.benchmarks import Benchmark
from dare.evaluation.forms import check_form, detect
from dare.evaluation.problems import Problem
from dare.evaluation.responses import ResponseFile, Saved
from dare.policy.generate import GenerationRequest, Generator
from dare.policy.sampling import Sampling
from dare.templates import Template, load_template
from dare.templates.encode import encode

MOST_SAMPLES = 4096


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
    ) -> list[dict[str, Any]]:
        """Responses to these problems, which stand at `places` of the benchmark `name`, with their
        tokens and why each ended.

        Each response has its own random numbers, named by benchmark, place and sample: it is the
        same in whatever batch it is drawn, and the first of 64 samples are those of a run with 8.
        A prompt that leaves no room gets empty responses that ended for that reason.
        """
        most, count = self.drawing.max_tokens, self.drawing.samples
        prompts = [encode(self.tokenizer, template.messages(one.shown)) for one in problems]
        room = [min(most, self.context - len(prompt)) for prompt in prompts]
        fits = [row for row, tokens in enumerate(room) if tokens >= 1]
        none = {"responses": [""] * count, "tokens": [0] * count, "finish": ["prompt"] * count}
        found: list[dict[str, Any]] = [none for _ in prompts]
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
            found[row] = {"responses": texts[own], "tokens": sizes, "finish": finish[own]}
        return found


class Source(Protocol):
    """Gives responses to the problems of a benchmark."""

    @property
    def step(self) -> int:
        """Problems answered, scored and written at a time: what a crash loses."""
        ...

    def begin(self, item: Benchmark, problems: Sequence[Problem]) -> tuple[list[int], str]:
        """Places of the problems that it has responses for, and the form these have."""
        ...

    def take(self, places: Sequence[int], problems: Sequence[Problem]) -> list[dict[str, Any]]:
        """Responses to problems of the benchmark begun last, as fields of their records."""
        ...


@dataclass
class FromModel:
    """Asks a policy; the template is the benchmark's unless another one is given."""

    respondent: Respondent
    form: str = "native"
    template: Callable[[Benchmark], Template] = field(
        default=lambda item: load_template(item.template)
    )
    batch: int = 512

    @property
    def step(self) -> int:
        """About `batch` responses."""
        return max(1, self.batch // self.respondent.drawing.samples)

    def begin(self, item: Benchmark, problems: Sequence[Problem]) -> tuple[list[int], str]:
        """All of them."""
        check_form(item, self.form)
        self._item, self._words = item, self.template(item)
        return list(range(len(problems))), self.form

    def take(self, places: Sequence[int], problems: Sequence[Problem]) -> list[dict[str, Any]]:
        """What it answers."""
        return self.respondent.answer(self._item.name, places, problems, self._words)


@dataclass
class FromFile:
    """Takes saved responses; `count` gives the tokens of a text where a tokenizer is at hand."""

    file: ResponseFile
    form: str = "auto"
    count: Callable[[str], int] | None = None
    batch: int = 512

    @property
    def step(self) -> int:
        """About `batch` responses."""
        responses = sum(len(saved.texts) for saved in self._found.values())
        return max(1, self.batch * len(self._found) // max(responses, 1))

    def begin(self, item: Benchmark, problems: Sequence[Problem]) -> tuple[list[int], str]:
        """Those that the file has responses to."""
        self._found: dict[int, Saved] = self.file.match(item.name, problems)
        places = sorted(self._found)
        form = self.form
        if form == "auto":
            texts = [self._found[place].texts for place in places]
            form = detect(item, [problems[place] for place in places], texts)
        check_form(item, form)
        return places, form

    def take(self, places: Sequence[int], problems: Sequence[Problem]) -> list[dict[str, Any]]:
        """What the file holds."""
        return [self._record(self._found[place]) for place in places]

    def _record(self, saved: Saved) -> dict[str, Any]:
        tokens = saved.tokens
        if self.count is not None:
            count = self.count
            tokens = [
                count(text) if known is None else known
                for text, known in zip(saved.texts, tokens, strict=True)
            ]
        record = {"responses": saved.texts, "tokens": tokens, "finish": saved.finish}
        if any(name is not None for name in saved.names):
            record["names"] = saved.names
        if any(label is not None for label in saved.labels):
            record["labels"] = saved.labels
        return record
