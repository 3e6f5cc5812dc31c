"""Which run folders the words of a command line mean, and what to call them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dare.errors import InvalidInput, require
from dare.runs.files import read_json

MARKS = ("metrics.jsonl", "eval.jsonl", "config.yaml")


@dataclass(frozen=True)
class Found:
    """A run folder, a short name that no other has, and the method if the user named one."""

    folder: Path
    name: str
    method: str | None


def find_runs(words: Sequence[str]) -> list[Found]:
    """A word is a run folder, a folder of them at any depth, or NAME=FOLDER."""
    folders: dict[Path, str | None] = {}
    for word in words:
        method, folder = named(word)
        inside = runs_under(folder)
        if not inside:
            raise InvalidInput("run", word, f"holds no run (a folder with {MARKS[0]})")
        for path in inside:
            if path in folders:
                raise InvalidInput("run", str(path), "is named twice")
            folders[path] = method
    short = _short_names(list(folders))
    alone = [method for method in folders.values() if method is not None]
    return [
        Found(path, method if method and alone.count(method) == 1 else name, method)
        for (path, method), name in zip(folders.items(), short, strict=True)
    ]


def named(word: str) -> tuple[str | None, Path]:
    """The name and the folder of NAME=FOLDER; no name where the word itself is a folder."""
    name, _, rest = word.partition("=")
    try:
        if word and Path(word).is_dir():
            return None, Path(word)
        if rest and Path(rest).is_dir():
            require(
                name, "run", word, "is NAME=FOLDER without a name; give one, or the folder alone"
            )
            return name, Path(rest)
    except OSError as error:  # a name that is too long, a folder that is locked
        raise InvalidInput("run", word, f"cannot be read ({error.strerror})") from None
    raise InvalidInput("run", word, "there is no such folder")


def runs_under(folder: Path, marks: Sequence[str] = MARKS) -> list[Path]:
    """The folder itself where it is a run, otherwise every run below it, in a study's order."""
    try:
        if any((folder / name).is_file() for name in marks):
            return [folder]
        found = {path.parent for name in marks for path in folder.glob(f"*/**/{name}")}
    except OSError as error:
        raise InvalidInput("run", str(folder), f"cannot be read ({error.strerror})") from None
    # A run inside a run is something else: a checkpoint's config, say.
    outer = [path for path in found if not any(parent in found for parent in path.parents)]
    order = study_order(folder)

    def place(path: Path) -> tuple[int, list[str]]:
        parts = path.relative_to(folder).parts
        rank = order.index(parts[0]) if parts[0] in order else len(order)
        # Numbers by their size: seed-2 before seed-10.
        return rank, [re.sub(r"\d+", lambda digits: digits[0].zfill(9), part) for part in parts]

    return sorted(outer, key=place)


def study_order(folder: Path) -> list[str]:
    """Methods as the study lists them: the first is what the others are held against."""
    try:
        held = read_json(folder / "study.json")
    except InvalidInput:
        return []
    methods = held.get("methods") if isinstance(held, dict) else None
    listed = methods if isinstance(methods, (list, dict)) else ()
    return [name for name in listed if isinstance(name, str)]


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The fewest last parts of each path that tell them all apart."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max((len(part) for part in parts), default=1) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names
