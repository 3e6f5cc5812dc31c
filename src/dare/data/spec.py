"""What to prepare: sources and rules, from a shipped recipe, a YAML file, or data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from dare.config.nested import arguments
from dare.data.contamination import SHARE, N
from dare.data.load import files_of, is_file
from dare.data.schema import as_level, check_columns
from dare.errors import InvalidInput, require, suggest
from dare.runs.files import user_yaml


@dataclass(frozen=True)
class SourceSpec:
    """One data set of a union."""

    name: str
    places: tuple[Any, ...]
    """What `read_rows` takes, one after the other."""
    columns: Mapping[str, str] = field(default_factory=dict)
    levels: Sequence[Any] = ()
    """Levels to keep; empty keeps all rows."""
    take: int | None = None
    """Rows to draw; fewer is an error unless it is allowed."""
    expect: int | None = None
    """Rows there must be without a draw."""
    by: Literal["ngrams", "text", "none"] = "ngrams"
    """Decontamination: by n-grams (and text), by text alone, or none."""
    repeats: Literal["drop", "keep"] = "drop"
    extra: Sequence[str] | None = None
    """Columns to keep beside the fields of the schema; None keeps all."""
    keep_source: bool = True
    """Whether a row's own source wins over the name of this one."""
    answers: Sequence[Any] = ()
    """Answers of rows that lack one: {begins, answer}."""

    @property
    def wanted(self) -> int | None:
        """How many rows there should be in the end."""
        return self.take if self.take is not None else self.expect


@dataclass(frozen=True)
class DataSpec:
    """A whole preparation."""

    name: str
    sources: tuple[SourceSpec, ...]
    seed: int = 0
    decontaminate: Any = "all"
    """all, none, or names of sets and files."""
    ngram: int = N
    share: float = SHARE
    bad_rows: Literal["error", "drop"] = "error"
    data_dir: Path | None = None


def recipe_names() -> list[str]:
    """Names of the shipped unions."""
    folder = resources.files("dare.data").joinpath("recipes")
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_spec(what: Sequence[str], data_dir: Path | None = None, **changes: Any) -> DataSpec:
    """The preparation that words of the command line name: a recipe, or data files and hub ids.

    `changes` replace settings of the whole (seed, decontaminate, bad_rows) or of every source
    (columns, levels, take, repeats, by, split); None changes nothing.
    """
    first = what[0] if what else ""
    if first in recipe_names():
        text = resources.files("dare.data").joinpath("recipes", f"{first}.yaml").read_text("utf-8")
        values, name = yaml.safe_load(text), first
    elif Path(first).suffix in (".yaml", ".yml"):
        values, name = user_yaml(Path(first), "recipe"), Path(first).stem
        require(isinstance(values, dict), "recipe", first, "must be a mapping of settings")
    else:
        for word in what:
            if not is_file(word) and "/" not in word:
                fix = f"is neither a file, a hub id nor a union; {suggest(word, recipe_names())}"
                raise InvalidInput("data", word, fix)
        names = _distinct(what)
        values = {"sources": [{"name": n, "path": w} for n, w in zip(names, what, strict=True)]}
        name, what = _stem(first), what[:1]
    require(len(what) == 1, "data", list(what), "prepare one recipe at a time")
    given = {key: value for key, value in changes.items() if value is not None}
    known = {one.name for one in fields(DataSpec)}
    whole = {key: given.pop(key) for key in list(given) if key in known}
    return _spec(name, {**values, **whole}, given, data_dir)


def _spec(
    name: str, values: Mapping[str, Any], each: Mapping[str, Any], data_dir: Path | None
) -> DataSpec:
    where = f"recipe {name}"
    fix = "is given on the command line"
    require("data_dir" not in values, f"{where}: data_dir", values.get("data_dir"), fix)
    listed = values.get("sources")
    require(isinstance(listed, list) and listed, f"{where}: sources", listed, "must be a list")
    sources = tuple(_source(name, item, each, data_dir) for item in listed or ())
    names = [source.name for source in sources]
    twice = {word for word in names if names.count(word) > 1}
    require(not twice, "sources", sorted(twice), "two sources have this name; rename one")
    rest = {k: v for k, v in values.items() if k not in ("about", "sources", "name")}
    checked = arguments(DataSpec, rest, where, some=True, mark=": ")
    made = DataSpec(**{**checked, "name": name, "sources": sources, "data_dir": data_dir})
    sets = [made.decontaminate] if isinstance(made.decontaminate, str) else made.decontaminate
    good = isinstance(sets, list | tuple) and all(isinstance(word, str) for word in sets)
    fix = "must be all, none, or a list of sets and files"
    require(good, "decontaminate", made.decontaminate, fix)
    return made


def _source(recipe: str, item: Any, each: Mapping[str, Any], data_dir: Path | None) -> SourceSpec:
    named = isinstance(item, Mapping) and item.get("name")
    if not named or not isinstance(item["name"], str):
        raise InvalidInput(f"recipe {recipe}: sources", item, "each source needs a name, a word")
    values = {**item, **each}
    where = f"source {values['name']}"
    places = _places(where, values, data_dir)
    settings = {k: v for k, v in values.items() if k not in ("path", "local", "hub", "split")}
    settings["columns"] = settings.get("columns") or {}
    check_columns(settings["columns"])
    checked = arguments(SourceSpec, settings, where, some=True, mark=": ")
    made = SourceSpec(**{**checked, "places": places})
    made = replace(made, levels=[_level(level, where) for level in made.levels])
    for item in made.answers:
        good = isinstance(item, Mapping) and {"begins", "answer"} == set(item)
        good = good and all(isinstance(word, str) for word in item.values())
        require(good, f"{where}: answers", item, "must be {begins: ..., answer: ...}, both texts")
    for key in ("take", "expect"):
        value = getattr(made, key)
        good = value is None or (type(value) is int and value > 0)
        require(good, f"{where}: {key}", value, "must be a positive number of rows")
    return made


def _places(where: str, values: Mapping[str, Any], data_dir: Path | None) -> tuple[Any, ...]:
    """Where a source's rows are: `path`, or `local` below the data folder, or `hub`."""
    if values.get("path"):
        found = values["path"] if isinstance(values["path"], list) else [values["path"]]
        split = values.get("split")
        return tuple({"path": path, "split": split} if split else path for path in found)
    if data_dir is not None:
        local = values.get("local") or []
        found = [str(data_dir / pattern) for pattern in local]
        require(found, where, None, "has no local copy; leave --data-dir out, or give it a path")
        return tuple(str(path) for pattern in found for path in files_of(pattern))
    require(values.get("hub"), where, None, "needs a path, or --data-dir FOLDER")
    return tuple(values["hub"])


def _level(value: Any, where: str) -> str:
    """A level to keep, in the form that rows have it: 3.0 and 'Level 3' are '3'."""
    level = as_level(value, f"{where}: levels")
    if level is None:
        raise InvalidInput(f"{where}: levels", value, "must be a word or a number")
    return level


def _distinct(words: Sequence[str]) -> list[str]:
    """Names of data files: train, but a/train and b/train where both are there."""
    names = [_stem(word) for word in words]
    if len(set(names)) < len(names):
        names = [f"{Path(word).parent.name}/{_stem(word)}" for word in words]
    if len(set(names)) < len(names):
        names = [f"{name}-{place}" for place, name in enumerate(names, start=1)]
    return names


def _stem(word: str) -> str:
    name = word.rstrip("/").rpartition("/")[2]
    return name.partition(".")[0].replace("*", "") or "data"
