"""Benchmarks by name: where their rows are, how they are asked and scored, and their problems.

All of it is data. A YAML file of one's own may hold anything: what cannot be is named.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import pickletools
import re
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dare.config.nested import arguments
from dare.data.load import read_rows, shipped_benchmarks
from dare.data.row import own_id, problem_text, where_is
from dare.data.schema import to_row
from dare.errors import InvalidInput, require, suggest
from dare.runs.files import user_yaml
from dare.templates import load_template

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")


@dataclass(frozen=True)
class Benchmark:
    """One entry of data/benchmarks.yaml, which says what each field means."""

    name: str
    parts: list[dict[str, Any]]
    about: str = ""
    rows: int | None = None
    reward: str = "math"
    template: str = "math"
    prompt: str | dict[str, str] | None = None
    continues: bool = False
    prelude: str = ""
    unpack: Literal["livecodebench"] | None = None
    repairs: Sequence[dict[str, str]] = ()
    judge: dict[str, Any] = field(default_factory=dict)

    @property
    def is_code(self) -> bool:
        """Whether responses are programs."""
        return self.reward == "code"


def benchmark_names() -> list[str]:
    """Names of the shipped benchmarks, in the order of the file."""
    return list(shipped_benchmarks())


def benchmark(name: str) -> Benchmark:
    """A shipped benchmark by name, or one of your own from a YAML file of the same form."""
    if name in shipped_benchmarks():
        return _built(name, shipped_benchmarks()[name])
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return _built(path.stem, user_yaml(path, "--benchmarks"), path.parent)
    fix = f"is no benchmark; {suggest(name, benchmark_names())}"
    raise InvalidInput("--benchmarks", name, fix)


def chosen(names: str) -> list[Benchmark]:
    """Benchmarks by names with commas between them."""
    words = [word.strip() for word in names.split(",") if word.strip()]
    require(words, "--benchmarks", names, f"name some of {', '.join(benchmark_names())}")
    twice = {word for word in words if words.count(word) > 1}
    require(not twice, "--benchmarks", names, f"{', '.join(sorted(twice))} is named twice")
    items = [benchmark(word) for word in words]
    called = [item.name for item in items]
    twice = {name for name in called if called.count(name) > 1}
    fix = f"two are called {', '.join(sorted(twice))}; rename the file of one"
    require(not twice, "--benchmarks", names, fix)
    return items


def raw_rows(
    item: Benchmark, data_dir: Path | None
) -> Generator[tuple[dict[str, Any], str | None]]:
    """Rows as they are, each with the subject that its part gives to all of its rows."""
    for part in item.parts:
        subject = part.get("subject")
        if "tasks" in part:
            from dare import tasks

            yield from ((dict(row), subject) for row in tasks.generate(**part["tasks"]))
            continue
        if data_dir is None and "hub" in part:
            rows = _from_hub(item, part)
        elif "file" in part:
            path = _file(item, part, part["file"], data_dir or Path())
            rows = read_rows(path, columns=part.get("columns"))
            if "join" in part:
                rows = _joined(rows, _file(item, part, part["join"], data_dir or Path()))
        else:
            continue  # a part that the local file of another part holds already
        yield from ((row, subject) for row in rows if _kept(row, part.get("keep") or {}))


def _from_hub(item: Benchmark, part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        yield from read_rows(part["hub"])
    except InvalidInput as error:
        where = f", as {part['file']}.jsonl," if "file" in part else ""
        fix = f"{error.fix}; to use a local copy{where} pass --data-dir FOLDER"
        raise InvalidInput(f"benchmark {item.name}", part["hub"]["path"], fix) from None


def _file(item: Benchmark, part: Mapping[str, Any], stem: str, folder: Path) -> Path:
    for ending in ("", *ENDINGS):
        path = folder / f"{stem}{ending}"
        if os.path.isfile(path):
            return path
    fix = f"is missing ({', '.join(ENDINGS)})"
    if "hub" in part:
        fix += f"; without --data-dir it is read from the hub ({part['hub']['path']})"
    raise InvalidInput(f"benchmark {item.name}", str(folder / stem), fix)


def _joined(rows: Iterator[dict[str, Any]], path: Path) -> Iterator[dict[str, Any]]:
    more = {str(row.get("id")): row for row in read_rows(path)}
    for row in rows:
        found = more.get(str(row.get("id")))
        if found is None:
            raise InvalidInput(str(path), row.get("id"), "there is no row with this id")
        yield {**row, **found}


def _kept(row: Mapping[str, Any], keep: Mapping[str, str]) -> bool:
    return all(re.search(str(wanted), str(row.get(name))) for name, wanted in keep.items())


def _built(name: str, values: Any, folder: Path | None = None) -> Benchmark:
    checked = check_settings(name, values)
    if folder is not None:  # files of your own benchmark lie beside it
        checked["parts"] = [beside(part, folder) for part in checked["parts"]]
    return Benchmark(**checked)


@dataclass(frozen=True)
class _Part:
    """What a part of a benchmark may say; it stays a mapping."""

    hub: str | dict[str, Any] = ""
    file: str = ""
    tasks: dict[str, Any] = field(default_factory=dict)
    join: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    keep: dict[str, Any] = field(default_factory=dict)
    subject: Any = None
    keep_out: Any = None


def check_settings(name: str, values: Any) -> dict[str, Any]:
    """The settings as they are, with every hub id as a mapping; what cannot be is named."""
    where = f"benchmark {name}"
    parts = values.get("parts", []) if isinstance(values, dict) else []
    listed = isinstance(parts, list) and all(isinstance(part, dict) for part in parts)
    require(listed, f"{where}: parts", parts, "must be a list of mappings")
    checked = arguments(Benchmark, values, where, some=True, mark=": ")
    require(parts, f"{where}: parts", parts, "must be a list of mappings")
    if "template" in values:
        load_template(values["template"])
    repairs = checked.get("repairs", [])
    known = all(repair.keys() == {"id", "find", "replace"} for repair in repairs)
    require(known, f"{where}: repairs", repairs, "must be a list of {id, find, replace}")
    if values.get("judge"):
        fix = "belongs to the reward code"
        require(values.get("reward") == "code", f"{where}: judge", values["judge"], fix)
    return {**checked, "name": name, "parts": [_part(where, part) for part in parts]}


def beside(part: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A part whose files lie in this folder."""
    return {key: str(folder / part[key]) if key in ("file", "join") else part[key] for key in part}


def _part(where: str, part: dict[str, Any]) -> dict[str, Any]:
    arguments(_Part, part, where, some=True, mark=": ")
    if not {"hub", "file", "tasks"} & part.keys():
        raise InvalidInput(f"{where}: parts", part, "needs a hub, a file or tasks")
    if isinstance(part.get("hub"), str):
        part = {**part, "hub": {"path": part["hub"]}}
    hub = part.get("hub", {"path": ""})
    known = isinstance(hub.get("path"), str)
    require(known, f"{where}: hub", hub, "must be a hub id, or a mapping with its path")
    for column, pattern in part.get("keep", {}).items():
        try:
            re.compile(str(pattern))
        except re.error as error:
            fix = f"is no regular expression: {error}"
            raise InvalidInput(f"{where}: keep.{column}", pattern, fix) from None
    if "tasks" in part:
        from dare import tasks

        arguments(tasks.generate, part["tasks"], f"{where}: tasks")
    return part


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


def load_problems(item: Benchmark, data_dir: str | Path | None = None) -> list[Problem]:
    """All problems; ids are unique."""
    folder = None if data_dir is None else Path(data_dir)
    if folder is not None and not os.path.isdir(folder):
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
    own = own_id(raw)
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
