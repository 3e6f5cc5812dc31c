"""Benchmarks by name: where their rows are, and how they are asked and scored; all of it data.

A YAML file of one's own may hold anything: what cannot be is named.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from dare.config.nested import arguments
from dare.data.load import read_rows, shipped_benchmarks
from dare.errors import InvalidInput, require, suggest
from dare.runs.files import load_yaml
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
        if not path.is_file():
            raise InvalidInput("--benchmarks", name, "there is no such file")
        try:
            values = load_yaml(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            fix = f"is not YAML: {' '.join(str(error).split())}"
            raise InvalidInput("--benchmarks", name, fix) from None
        return _built(path.stem, values, path.parent)
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
        if path.is_file():
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
