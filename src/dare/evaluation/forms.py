r"""How a response states its answer, and turning that into what the reward reads.

The rewards of training read `\boxed{}`, `####` and fenced programs. Responses that others saved may
state theirs differently; they are scored by the same rewards after the answer has been restated at
the end. The response itself is kept as it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dare.errors import InvalidInput, suggest
from dare.evaluation.benchmarks import Benchmark
from dare.evaluation.problems import Problem
from dare_verify.math.extract import boxed_answer

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
