"""The problems of a benchmark, from rows of any origin, in one form."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import pickletools
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare.data.row import problem_text, where_is
from dare.data.schema import to_row
from dare.errors import InvalidInput, require
from dare.evaluation.benchmarks import Benchmark, raw_rows

_IDS = ("id", "task_id", "unique_id", "question_id", "ID")
_SLOT = re.compile(r"\{(\w+)\}")
_IMPORT = re.compile(r"^(?:from\s+\S+\s+)?import\s.+$", re.MULTILINE)


@dataclass(frozen=True)
class Problem:
    """What is asked, and what the reward needs to score an answer."""

    id: str
    prompt: str
    text: str
    """The problem itself, without the wording around it: what saved responses are matched by."""
    gold: str | None
    columns: dict[str, Any]
    level: str | None = None
    subject: str | None = None
    starter: str | None = None
    """The beginning of the program, where a completion may go on from there."""
    solution: str | None = None
    turns: list[dict[str, str]] | None = None
    """The conversation that the row holds instead of a text, where no wording is put around it."""

    @property
    def shown(self) -> str | list[dict[str, str]]:
        """What the template is filled with: the same as in training on such a row."""
        return self.prompt if self.turns is None else self.turns


def load_problems(
    item: Benchmark, data_dir: str | Path | None = None, limit: int | None = None
) -> list[Problem]:
    """All problems, or the first `limit`; ids are unique."""
    require(limit is None or limit >= 1, "--limit", limit, "must be at least 1")
    folder = None if data_dir is None else Path(data_dir)
    if folder is not None and not folder.is_dir():
        raise InvalidInput("--data-dir", str(folder), "there is no such folder")
    problems: list[Problem] = []
    seen: set[str] = set()
    with closing(raw_rows(item, folder)) as rows:  # files are closed whatever happens
        for place, (raw, subject) in enumerate(rows):
            problem = _problem(item, raw, place, subject)
            if problem.id in seen:
                where = f"{where_is(raw)}: id"
                raise InvalidInput(where, problem.id, "another row has this id too")
            seen.add(problem.id)
            problems.append(problem)
            if limit is not None and len(problems) == limit:
                break
    if not problems:
        raise InvalidInput(f"benchmark {item.name}", 0, "no row is left of its data")
    return problems


def fingerprint(item: Benchmark, problems: Sequence[Problem]) -> str:
    """Changes when any problem or gold does, or their order, or how they are asked and scored."""
    digest = hashlib.sha256()
    digest.update(json.dumps([item.reward, item.template, dict(item.judge)]).encode())
    for problem in problems:
        columns = json.dumps(problem.columns, sort_keys=True, default=str)
        digest.update(json.dumps([problem.id, problem.shown, problem.gold, columns]).encode())
    return digest.hexdigest()[:16]


def _problem(item: Benchmark, raw: dict[str, Any], place: int, subject: str | None) -> Problem:
    where = where_is(raw)
    if item.unpack == "livecodebench":
        raw = unpack(raw, where)
    own = next((raw[name] for name in _IDS if raw.get(name) is not None), None)
    name = str(own) if own is not None else f"{item.name}/{place}"
    if subject is not None and name.isdigit():  # numbers begin anew in every part
        name = f"{subject} {name}"
    if isinstance(raw.get("solution"), list):  # OlympiadBench has several
        raw = {**raw, "solution": "\n\n".join(map(str, raw["solution"]))}
    row = to_row(_repaired(item, raw, name, where), item.name)
    text = problem_text(row["prompt"])
    solution, starter = row["solution"], None
    if item.continues:
        starter, solution = text, None if solution is None else text + solution
    columns: dict[str, Any] = {"answer": row["answer"]}
    kind = "text"
    if item.is_code:
        kind, tests = _tests(item, row["tests"], text, f"{where}: tests")
        columns = {"tests": tests, "kind": kind}
    elif row["answer"] is None:
        raise InvalidInput(f"{where}: answer", None, "every problem needs its gold answer")
    named = raw.get("subject", raw.get("platform"))
    return Problem(
        id=name,
        prompt=_worded(item, kind, {**raw, "prompt": text}, where),
        text=text,
        gold=solution if item.is_code else row["answer"],
        columns=columns,
        level=row["level"],
        subject=subject if named is None else " ".join(str(named).split()),
        starter=starter,
        solution=solution,
        turns=row["prompt"] if item.prompt is None and text is not row["prompt"] else None,
    )


def _repaired(item: Benchmark, raw: dict[str, Any], name: str, where: str) -> Mapping[str, Any]:
    for repair in item.repairs:
        if repair["id"] != name:
            continue
        code = raw.get("tests")
        if not isinstance(code, str):
            raise InvalidInput(f"{where}: tests", code, f"must be code, to be repaired ({name})")
        raw = {**raw, "tests": code.replace(repair["find"], repair["replace"])}
    return raw


def _tests(
    item: Benchmark, tests: list[dict[str, Any]] | None, text: str, where: str
) -> tuple[str, list[dict[str, Any]]]:
    """Tests with what they may rely on, and their kind."""
    if not tests:
        raise InvalidInput(where, tests, "every problem needs tests")
    first = tests[0]
    kind = "function" if "fn" in first else "assert" if "code" in first else "stdin"
    extra: dict[str, Any] = {}
    if item.prelude and kind == "function":
        extra["prelude"] = item.prelude
    if item.continues and kind == "assert":
        # Helpers of the prompt that tests call are taken from here: a program could bend them.
        extra["helpers"] = text
        # A response that repeats the function alone still has the prompt's imports.
        extra["prelude"] = "\n".join(_IMPORT.findall(text))
    return kind, [{**test, **extra} for test in tests]


def _worded(item: Benchmark, kind: str, raw: Mapping[str, Any], where: str) -> str:
    """The wording of the benchmark around the problem, filled in one pass."""
    wording = item.prompt.get(kind) if isinstance(item.prompt, dict) else item.prompt
    if wording is None:
        return str(raw["prompt"])

    def value(slot: re.Match[str]) -> str:
        if slot[1] not in raw:
            fix = f"the prompt of {item.name} needs it; it has {', '.join(map(str, raw))}"
            raise InvalidInput(f"{where}: {slot[1]}", None, fix)
        found = raw[slot[1]]
        return "\n".join(map(str, found)) if isinstance(found, list) else str(found).strip("\n")

    return _SLOT.sub(value, wording)


_MOST_BYTES = 1 << 30


def unpack(row: dict[str, Any], where: str) -> dict[str, Any]:
    """The row with all of its tests in the column `tests`; one that has it already stays as is."""
    if "public_test_cases" not in row:
        return row
    try:
        tests = json.loads(row["public_test_cases"])
        private = row.get("private_test_cases")
        if private:
            tests += json.loads(_text(private))
    except (ValueError, TypeError, zlib.error, binascii.Error) as error:
        fix = f"the tests cannot be unpacked: {error}"
        raise InvalidInput(where, row.get("id"), fix) from None
    return {**row, "tests": tests}


def _text(packed: str) -> str:
    """The one string in the pickle. Its parts are listed, not loaded: a pickle can run code."""
    if packed.lstrip()[:1] == "[":
        return packed
    engine = zlib.decompressobj()
    data = engine.decompress(base64.b64decode(packed), _MOST_BYTES)
    strings = [value for _, value, _ in pickletools.genops(data) if isinstance(value, str)]
    if len(strings) != 1:
        raise ValueError(f"{len(strings)} strings where one was expected")
    return strings[0]
