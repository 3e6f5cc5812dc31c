"""Which run folders the words of a command line mean, and what to call them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dare.errors import InvalidInput

_MARKS = ("metrics.jsonl", "eval.jsonl", "config.yaml")


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
        method, folder = _named(word)
        inside = _runs_under(folder)
        if not inside:
            raise InvalidInput("run", word, f"holds no run (a folder with {_MARKS[0]})")
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


def _named(word: str) -> tuple[str | None, Path]:
    if Path(word).is_dir():
        return None, Path(word)
    name, equals, rest = word.partition("=")
    folder = Path(rest if equals else word)
    if not folder.is_dir():
        raise InvalidInput("run", word, "there is no such folder")
    return name or None, folder


def _runs_under(folder: Path) -> list[Path]:
    """The folder itself where it is a run, otherwise every run below it."""
    if any((folder / name).is_file() for name in _MARKS):
        return [folder]
    found = {path.parent for name in _MARKS for path in folder.glob(f"*/**/{name}")}
    # A run inside a run is something else: a checkpoint's config, say.
    outer = [path for path in found if not any(parent in found for parent in path.parents)]
    return sorted(outer, key=lambda path: [(len(part), part) for part in path.parts])


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The fewest last parts of each path that tell them all apart."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max((len(part) for part in parts), default=1) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names
