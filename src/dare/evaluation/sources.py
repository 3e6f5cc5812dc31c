"""Where responses come from: a policy that is asked now, or a file of saved ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dare.evaluation.answers import Answers, Respondent
from dare.evaluation.benchmarks import Benchmark
from dare.evaluation.forms import check_form, detect
from dare.evaluation.problems import Problem
from dare.evaluation.responses import ResponseFile, Saved
from dare.templates import Template, load_template


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
        made = self.respondent.answer(self._item.name, places, problems, self._words)
        return [_fields(answers) for answers in made]


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


def _fields(answers: Answers) -> dict[str, Any]:
    return {"responses": answers.texts, "tokens": answers.tokens, "finish": answers.finish}
