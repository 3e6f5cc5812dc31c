"""The program in what a model wrote, judged: a reward function in TRL's style."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

from dare_errors import InvalidInput
from dare_verify.code.judge import check_tests, judge_batch
from dare_verify.code.trials import Verdict

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`{]*)[^\n`]*$")
_PYTHON = re.compile(r"py(thon)?[0-9.]*", re.IGNORECASE)


def extract_program(completion: str, *, bare: bool = False) -> str | None:
    """The last fenced block of Python; where no block says it is Python, the last unnamed one.

    None where there is none, and where the last one was never closed: a response that was cut off
    inside its program has no program, whatever it wrote before. With `bare`, a completion that has
    no fence at all is itself the program, as base models write it.
    """
    lines = completion.replace("\r\n", "\n").split("\n")
    last: dict[bool, str | None] = {}
    place = 0
    while place < len(lines):
        opened = _FENCE.match(lines[place])
        place += 1
        if not opened:
            continue
        indent, fence, name = opened.groups()
        end = next((n for n in range(place, len(lines)) if _closes(lines[n], fence)), None)
        body = lines[place : len(lines) if end is None else end]
        if not name or _PYTHON.fullmatch(name):
            text = "\n".join(line.removeprefix(indent) for line in body) + "\n"
            last[bool(name)] = text if end is not None else None
        place = len(lines) if end is None else end + 1
    if last:
        found = last[True] if True in last else last[False]
        return found if found and found.strip() else None
    fenced = any(_FENCE.match(line) for line in lines)
    return completion if bare and not fenced and completion.strip() else None


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and set(mark) == {fence[0]}


_LOG = logging.getLogger(__name__)
RewardFunction = Callable[..., list[float | None]]


def make_code_reward(
    *,
    partial_credit: bool = False,
    bare: bool = False,
    workers: int | None = None,
    **options: Any,
) -> RewardFunction:
    """A reward function with other settings; `options` are those of `judge`.

    With `partial_credit` the reward is the share of tests passed, which takes all tests to be run.
    With `bare`, completions without a fence are programs.
    """

    def code_reward(
        completions: Sequence[Any], tests: Sequence[Any], kind: Any = None, **_: Any
    ) -> list[float | None]:
        kinds = [kind] * len(completions) if kind is None or isinstance(kind, str) else kind
        items = [
            {"program": extract_program(_text(completion), bare=bare), **_row(given, named)}
            for completion, given, named in zip(completions, tests, kinds, strict=True)
        ]
        asked = [given is not None for given in tests]  # a row of another task has none
        settings = {"stop_early": not partial_credit, **options}
        usable = [place for place, item in enumerate(items) if asked[place] and _usable(item)]
        chosen = [items[place] for place in usable]
        verdicts = judge_batch(chosen, None, workers=workers, **settings)
        rewards: list[float | None] = [None] * len(items)
        for place, verdict in zip(usable, verdicts, strict=True):
            rewards[place] = _value(verdict, len(items[place]["tests"]), partial_credit)
        return rewards

    code_reward.__doc__ = "1.0 where the program passes its tests, None where it cannot be judged."
    setattr(code_reward, "judges", ("tests",))  # noqa: B010
    return code_reward


def code_reward(
    completions: Sequence[Any], tests: Sequence[Any], kind: Any = None, **columns: Any
) -> list[float | None]:
    """1.0 where the last fenced program passes all of its tests, None where it cannot be judged.

    `tests` has a list of tests a row, or the JSON text of one (a data set's column has one type,
    arguments have many); `kind`, where it is not given, follows from the keys of the tests.
    """
    return _DEFAULT(completions, tests, kind, **columns)


_DEFAULT = make_code_reward()
setattr(code_reward, "judges", ("tests",))  # noqa: B010


def _row(given: Any, kind: Any) -> dict[str, Any]:
    """Tests as dicts, with their kind."""
    try:
        tests = json.loads(given) if isinstance(given, str) else list(given)
    except (ValueError, TypeError):
        return {"tests": [], "kind": "stdin"}  # no tests, so the row is unscored
    if kind is None and tests and isinstance(tests[0], dict):
        first = {name for name, value in tests[0].items() if value is not None}
        kind = "function" if "fn" in first else "assert" if "code" in first else "stdin"
    return {"tests": tests, "kind": kind or "stdin"}


def _usable(item: dict[str, Any]) -> bool:
    """Whether there are tests to judge by; a row without any says nothing of its program."""
    try:
        check_tests(item["tests"], item.get("kind"))
    except InvalidInput as error:
        _LOG.warning("a row is left unscored: %s", error)
        return False
    return True


def _value(verdict: Verdict, count: int, partial_credit: bool) -> float | None:
    if verdict.passed is None:
        return None
    return verdict.tests_passed / max(count, 1) if partial_credit else float(verdict.passed)


def _text(completion: Any) -> str:
    """A plain completion, or the last message of a conversational one."""
    if isinstance(completion, str):
        return completion
    try:
        content = completion[-1]["content"]
    except (LookupError, TypeError) as error:
        fix = "must be a text or a list of messages with content"
        raise InvalidInput("completions", completion, fix) from error
    return content if isinstance(content, str) else ""
