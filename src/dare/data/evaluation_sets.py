"""The problems of the evaluation sets, from the hub or from local copies."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from dare.data.contamination import Problem
from dare.data.load import files_of, read_rows
from dare.data.row import lookup, where_is
from dare.data.schema import problem_text, to_row
from dare.errors import InvalidInput, suggest

_IDS = ("id", "unique_id", "task_id", "question_id")


@dataclass
class EvaluationSets:
    """Problems to keep out of the training data, with where each set came from."""

    problems: list[Problem] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def evaluation_set_names() -> list[str]:
    """Names of the known evaluation sets."""
    return list(_known())


def load_sets(names: str | Iterable[str], data_dir: Path | None = None) -> EvaluationSets:
    """Sets by name ("all" for every one), or files of your own problems.

    A set of `all` that has no local copy is named in `missing`; one that was asked for must be
    there.
    """
    everything = names == "all"
    wanted = evaluation_set_names() if everything else _split(names)
    found = EvaluationSets()
    for name in wanted:
        source = _source(name, data_dir)
        if source is None:
            if not everything:
                raise InvalidInput("decontaminate", name, f"has no local copy in {data_dir}")
            found.missing.append(name)
            continue
        before = len(found.problems)
        try:
            found.problems += _problems(name, source)
        except InvalidInput as error:
            if not isinstance(source, dict):
                raise
            fix = (
                f"cannot be had from the hub ({error}); give local copies with --data-dir DIR, "
                "or skip the check with --decontaminate none"
            )
            raise InvalidInput("decontaminate", name, fix) from None
        found.counts[name] = len(found.problems) - before
        found.sources[name] = str(source["path"] if isinstance(source, dict) else source)
    return found


def _split(names: str | Iterable[str]) -> list[str]:
    words = names.split(",") if isinstance(names, str) else list(names)
    return [word.strip() for word in words if word.strip() and word.strip() != "none"]


def _source(name: str, data_dir: Path | None) -> dict[str, Any] | str | None:
    """What to read for a set; None where a local copy is wanted and absent."""
    if Path(name).suffix:
        return name  # a file of the user's
    if name not in _known():
        fix = f"is no evaluation set; {suggest(name, _known())}"
        raise InvalidInput("decontaminate", name, fix)
    if data_dir is None:
        return dict(_known()[name]["hub"])
    pattern = str(data_dir / _known()[name]["local"])
    try:
        files_of(pattern)
    except InvalidInput:
        return None
    return pattern


def _problems(name: str, source: Any) -> Iterator[Problem]:
    columns = source.get("columns") if isinstance(source, dict) else None
    place = {key: value for key, value in source.items() if key != "columns"} if columns else source
    for number, raw in enumerate(read_rows(place), start=1):
        row = to_row(raw, name, columns, need_answer=False)
        own = next((lookup(raw, key) for key in _IDS if lookup(raw, key) is not None), None)
        where = where_is(raw) if own is None else own
        yield Problem(name, str(where or number), problem_text(row["prompt"]))


@functools.cache
def _known() -> dict[str, dict[str, Any]]:
    text = resources.files("dare.data").joinpath("evaluation_sets.yaml").read_text("utf-8")
    values: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return values
