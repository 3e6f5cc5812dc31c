r"""Responses that somebody saved, matched to the problems of a benchmark; how they state answers.

The rewards of training read `\boxed{}`, `####` and fenced programs. Responses that others saved may
state theirs differently; they are scored by the same rewards after the answer has been restated at
the end. The response itself is kept as it was.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dare.data.load import read_rows
from dare.data.row import IDS, own_id, where_is
from dare.errors import InvalidInput, suggest
from dare.evaluation.benchmarks import Benchmark, Problem
from dare_verify.math.extract import boxed_answer

# The first of these that a row has holds its responses: a text, a list of texts, or of mappings.
TEXTS = (
    *("responses", "response", "completions", "completion", "samples", "generations"),
    *("generation", "outputs", "output", "predictions", "prediction", "solution"),
)
LABELS = (
    *("labels", "is_correct", "correct", "is_match_strict", "is_match", "passed", "label"),
    "base_status",
)
_PROBLEMS = ("problem", "question", "prompt")
_MOST_TOKENS = 1 << 40
_WORDS = {"pass": True, "passed": True, "fail": False, "failed": False, "timeout": False}


class Saved(NamedTuple):
    """A response; the label is the file's own verdict."""

    text: str
    name: str | None
    label: bool | None
    tokens: int | None
    finish: str | None


@dataclass(frozen=True)
class SavedRow:
    """A row of the file: what it answers, and with what."""

    where: str
    id: str | None
    problem: str | None
    benchmark: str | None
    saved: list[Saved]


class ResponseFile:
    """A file of responses, read once; rows of one problem are put together when matched."""

    def __init__(
        self, path: str | Path, column: str | None = None, label: str | None = None
    ) -> None:
        self.path, self._column, self._label = Path(path), column, label
        if not os.path.isfile(path):
            raise InvalidInput("--responses", str(path), "there is no such file")
        with open(self.path, "rb") as file:
            self.digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        self._label_seen = label is None
        self.rows = [self._row(row) for row in read_rows(self.path)]
        if not self._label_seen:
            raise InvalidInput("--label", label, "no row of the file has this column")
        self._matched: set[int] = set()

    def match(self, name: str, problems: Sequence[Problem]) -> dict[int, list[Saved]]:
        """Responses by the place of their problem: by id, otherwise by the problem's text."""
        by_id = {problem.id: place for place, problem in enumerate(problems)}
        by_text: dict[str, int] = {}
        for place, problem in enumerate(problems):
            by_text.setdefault(_plain(problem.text), place)
            by_text.setdefault(_plain(problem.prompt), place)
        found: dict[int, list[Saved]] = {}
        for number, row in enumerate(self.rows):
            if row.benchmark is not None and row.benchmark != name:
                continue
            text = None if row.problem is None else by_text.get(_plain(row.problem))
            own = by_id.get(row.id) if row.id is not None else None
            if own is not None and text is not None and own != text:
                fix = f"has the id {row.id} but the text of {problems[text].id}"
                raise InvalidInput(row.where, row.id, fix)
            match = text if own is None else own
            if match is not None:
                self._matched.add(number)
            # A row without any response leaves its problem among those that have none.
            if match is not None and row.saved:
                found.setdefault(match, []).extend(row.saved)
        return found

    def unmatched(self) -> list[str]:
        """Names of the rows that no benchmark so far had a problem for."""
        return [
            row.id or row.where
            for number, row in enumerate(self.rows)
            if number not in self._matched
        ]

    def _row(self, row: Mapping[str, Any]) -> SavedRow:
        where = where_is(row)
        saved = []
        for text, name, label, tokens, finish in self._responses(row, where):
            if not isinstance(text, str):
                raise InvalidInput(f"{where}: response", text, "must be a text")
            reason = finish if isinstance(finish, str) else None
            saved.append(Saved(text, name, _verdict(label), _count(tokens), reason))
        own = own_id(row)
        problem = next((row[key] for key in _PROBLEMS if isinstance(row.get(key), str)), None)
        if own is None and problem is None:
            fix = f"needs an id ({', '.join(IDS)}) or a problem ({', '.join(_PROBLEMS)})"
            raise InvalidInput(where, sorted(map(str, row)), fix)
        benchmark = row.get("benchmark")
        return SavedRow(
            where=where,
            id=None if own is None else str(own),
            problem=problem,
            benchmark=benchmark if isinstance(benchmark, str) else None,
            saved=saved,
        )

    def _responses(self, row: Mapping[str, Any], where: str) -> Iterator[tuple[Any, ...]]:
        """(text, name, label, tokens, finish) of each response of a row."""
        nested = [name for name, value in row.items() if _inner(value) is not None]
        column = self._column or next((name for name in TEXTS if row.get(name) is not None), None)
        if column is None and not nested:
            empty = next((name for name in TEXTS if name in row), None)
            fix = f"name its column with --column ({', '.join(map(str, row))})"
            if empty is not None:
                fix = 'is null; drop the row, or write "" for a response without any text'
            raise InvalidInput(f"{where}: {empty or 'response'}", None, fix)
        if column is not None and column not in row:
            raise InvalidInput("--column", column, suggest(column, [str(name) for name in row]))
        if column is None or _inner(row[column]) is not None:
            # One column a model, each a mapping with its response, as OpenAI published GSM8K's.
            for name in nested if column is None else [column]:
                inner = row[name]
                yield inner[_inner(inner)], name, self._verdict_of(inner), None, None
            return
        value = row[column]
        texts = value if isinstance(value, list) else [value]
        labels, tokens = self._verdict_of(row), row.get("tokens")
        names = row.get("names")  # records of an evaluation of several models
        finish = row.get("finish", row.get("finish_reason"))
        for place, text in enumerate(texts):
            inner = _inner(text)
            label = self._verdict_of(text) if inner is not None else _at(labels, place, texts)
            yield (
                text if inner is None else text[inner],
                name if isinstance(name := _at(names, place, texts), str) else None,
                label,
                _at(tokens, place, texts),
                _at(finish, place, texts),
            )

    def _verdict_of(self, row: Mapping[str, Any]) -> Any:
        if self._label is not None:
            self._label_seen |= self._label in row
            return row.get(self._label)
        return next((row[name] for name in LABELS if row.get(name) is not None), None)


def _inner(value: Any) -> str | None:
    """The key of the response inside a mapping."""
    if not isinstance(value, Mapping):
        return None
    return next((name for name in (*TEXTS, "text") if isinstance(value.get(name), str)), None)


def _at(values: Any, place: int, texts: Sequence[Any]) -> Any:
    """The entry of one response, or what holds for all."""
    if isinstance(values, list):
        return values[place] if len(values) == len(texts) else None
    return values


def _count(value: Any) -> int | None:
    """A number of tokens; anything else in a column of that name says nothing."""
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS
    return value if known else None


def _verdict(value: Any) -> bool | None:
    if isinstance(value, str):
        return _WORDS.get(value.strip().lower())
    if isinstance(value, bool) or (isinstance(value, (int, float)) and value in (0, 1)):
        return bool(value)
    return None


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()


FORMS = {
    "native": "as the reward reads it: a box, #### or a fenced program",
    "tag": "<answer>...</answer>",
    "line": "a last line 'A: ...', 'Answer: ...' or 'The answer is ...'",
    "program": "a bare program",
    "continuation": "what follows the beginning of a program that the prompt gives",
}
_MATH, _CODE = ("native", "tag", "line"), ("native", "program", "continuation")
_TAG = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
_LINE = re.compile(
    r"(?:^|\n)[ \t]*(?:(?:A|(?:Final )?Answer)[ \t]*:|The (?:final )?answer is:?)[ \t]*([^\n]+)",
    re.IGNORECASE,
)
_NATIVE = re.compile(r"\\boxed|\\fbox|####")
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})", re.MULTILINE)
# Where a completion of a function has ended and something else begins.
_AFTER = re.compile(
    r"^(?:class\b|def\b|@|#|if\b|print\b|assert\b|import\b|from\b|```|<\|)", re.MULTILINE
)


def detect(item: Benchmark, problems: Sequence[Problem], responses: Sequence[Sequence[str]]) -> str:
    """The form that most responses of a file have."""
    pairs = [
        (problem, text)
        for problem, texts in zip(problems, responses, strict=True)
        for text in texts
    ]
    if item.is_code:
        if _most([_FENCE.search(text) is not None for _, text in pairs]):
            return "native"
        can_continue = any(problem.starter for problem in problems)
        whole = [text.lstrip("\n")[:1].strip() != "" for _, text in pairs]
        return "continuation" if can_continue and not _most(whole) else "program"
    texts = [text for _, text in pairs]
    # A response that reasons with boxes and then answers in a tag means the tag.
    if _most([_TAG.search(text) is not None for text in texts]):
        return "tag"
    if _most([_NATIVE.search(text) is not None for text in texts]):
        return "native"
    return "line" if _most([_LINE.search(text) is not None for text in texts]) else "native"


def check_form(item: Benchmark, form: str) -> None:
    """Refuse a form that the benchmark's responses cannot have."""
    possible = _CODE if item.is_code else _MATH
    if form not in possible:
        fix = f"responses to {item.name} cannot be that; {suggest(form, possible)}"
        raise InvalidInput("--form", form, fix)


def restate(form: str, problem: Problem, response: str) -> str:
    """The response with its answer in the form that the reward reads."""
    if form == "tag":
        return _with_answer(response, _TAG)
    if form == "line":
        return _with_answer(response, _LINE)
    if form == "program" and not _FENCE.search(response):
        return _fenced(response)
    if form == "continuation" and problem.starter is not None:
        return _fenced(problem.starter + _cut(response))
    return response


def _with_answer(response: str, pattern: re.Pattern[str]) -> str:
    """The last answer that the pattern finds, in a box; without one there is no answer at all."""
    found = pattern.findall(response)
    answer = found[-1].strip().removesuffix(".") if found else ""
    if _NATIVE.search(answer):
        return answer if boxed_answer(answer) or "####" in answer else ""
    return f"\\boxed{{{answer}}}" if answer else ""


def _cut(completion: str) -> str:
    """A completion up to where the function has ended."""
    after = _AFTER.search(completion, completion.find("\n") + 1) if "\n" in completion else None
    return completion if after is None else completion[: after.start()]


def _fenced(program: str) -> str:
    longest = max((len(mark) for mark in re.findall(r"`{3,}", program)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}python\n{program}\n{fence}"


def _most(votes: Sequence[bool]) -> bool:
    return sum(votes) * 2 > len(votes)
