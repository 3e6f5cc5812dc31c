"""The difficulty table of a run: read, filter, sort, count, export."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from dare.curriculum.arrays import Array
from dare.curriculum.tiers import Tier
from dare.errors import InvalidInput, require, suggest
from dare.runs.files import read_whole, read_yaml

FILE = "difficulty.parquet"
BINS = 20
TIERS = tuple(tier.name.lower() for tier in Tier)


@dataclass(frozen=True)
class Filter:
    """Which prompts to look at; what is empty or None lets all through."""

    tiers: Sequence[str] = ()
    sources: Sequence[str] = ()
    levels: Sequence[str] = ()
    seen: bool | None = None
    least: float = 0.0
    most: float = 1.0

    def __post_init__(self) -> None:
        for name in self.tiers:
            if name not in TIERS:
                raise InvalidInput("--tier", name, suggest(name, TIERS))
        fix = "needs 0 <= --min <= --max <= 1: difficulty is a failure rate"
        require(0 <= self.least <= self.most <= 1, "--min", (self.least, self.most), fix)


def read(run: Path) -> pyarrow.Table | None:
    """The table with tiers by name; None where the run has none yet.

    A run replaces the file while it is read: the bytes are taken at once, so they are of one
    version, and a copy that is not complete counts as not there yet.
    """
    if not os.path.isdir(run):
        raise InvalidInput("run", str(run), "is no folder; give the run's output_dir")
    try:
        held = read_whole(run / FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput("run", str(run), f"its {FILE} cannot be read ({error})") from None
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(held))
        table.validate(full=True)
    except (pyarrow.ArrowException, OSError):  # OSError is what a cut-off footer gives
        return None
    fix = f"its {FILE} is not a difficulty table of dare"
    require(_is_ours(table), "run", str(run), fix)
    codes = table["tier"].to_pylist()
    require(set(codes) <= set(range(len(TIERS))), "run", str(run), fix)
    names = [TIERS[code] for code in codes]
    place = table.column_names.index("tier")
    table = table.set_column(place, "tier", pyarrow.array(names, pyarrow.string()))
    return _with_prompts(table, run / "prompts.parquet")


def _is_ours(table: pyarrow.Table) -> bool:
    """Whether it has the columns that everybody relies on, and none but numbers and texts."""
    kinds, names = pyarrow.types, table.column_names
    whole = ("tier", "visits", "last_step")
    needed = {"id", "source", "level", "difficulty", *whole}
    if len(set(names)) < len(names) or not needed <= set(names):
        return False
    plain = (kinds.is_string, kinds.is_large_string, kinds.is_integer, kinds.is_floating)
    return (
        all(any(one(table[name].type) for one in plain) for name in names)
        and all(kinds.is_integer(table[name].type) for name in whole)
        and not any(table[name].null_count for name in ("id", "difficulty", *whole))
        and kinds.is_floating(table["difficulty"].type)
        and all(-1e-6 <= share <= 1 + 1e-6 for share in table["difficulty"].to_pylist())
    )


def has_tiers(run: Path) -> bool:
    """Whether the run's tiers are on: off, all its prompts are medium by name alone. A run that
    does not say is shown with what its table holds."""
    try:
        held = read_yaml(run / "config.yaml").get("curriculum")
    except InvalidInput:
        return True
    return bool(held.get("tiers", True)) if isinstance(held, dict) else True


def _with_prompts(table: pyarrow.Table, path: Path) -> pyarrow.Table:
    """With the texts of the prompts, where the run has left them."""
    try:
        held = pyarrow.parquet.read_table(io.BytesIO(read_whole(path)), columns=["id", "prompt"])
        held.validate(full=True)
        text = dict(zip(held["id"].to_pylist(), held["prompt"].to_pylist(), strict=True))
        found = pyarrow.array(map(text.get, table["id"].to_pylist()), pyarrow.string())
    # a run of an earlier version, one that just begins, a damaged file
    except (OSError, KeyError, TypeError, pyarrow.ArrowException):
        return table
    return table.append_column("prompt", found)


def select(table: pyarrow.Table, wanted: Filter) -> pyarrow.Table:
    """The rows that pass; a source or level that no prompt has is an error."""
    difficulty = column(table, "difficulty")
    keep = (difficulty >= wanted.least) & (difficulty <= wanted.most)
    for name, values in (
        ("tier", wanted.tiers),
        ("source", wanted.sources),
        ("level", wanted.levels),
    ):
        if values:
            held = column(table, name).astype(str)
            known = set(np.unique(held).tolist()) | (set(TIERS) if name == "tier" else set())
            for value in values:
                if value not in known:
                    raise InvalidInput(f"--{name}", value, suggest(value, known))
            keep &= np.isin(held, list(values))
    if wanted.seen is not None:
        keep &= (column(table, "visits") > 0) == wanted.seen
    return table.filter(pyarrow.array(keep))


def order(table: pyarrow.Table, rule: str) -> pyarrow.Table:
    """Sorted by `column`, `column:asc` or `column:desc`; ties stay in the order of the ids."""
    name, _, way = rule.partition(":")
    if name not in table.column_names:
        raise InvalidInput("--sort", name, suggest(name, table.column_names))
    require(way in ("", "asc", "desc"), "--sort", rule, "the order is asc or desc")
    keys = [(name, "descending" if way == "desc" else "ascending")]
    return table.sort_by([*keys, ("id", "ascending")] if name != "id" else keys)


def summarise(table: pyarrow.Table, of: int) -> dict[str, Any]:
    """Counts and means of the rows, which are some `of` all."""
    difficulty, tier = column(table, "difficulty"), column(table, "tier")
    visits, count = column(table, "visits"), table.num_rows
    newest = int(column(table, "last_step").max()) if count else -1
    return {
        "prompts": count,
        "of": of,
        "tiers": {name: int(np.count_nonzero(tier == name)) for name in TIERS},
        "seen": int(np.count_nonzero(visits)),
        "coverage": float(np.count_nonzero(visits)) / count if count else 0.0,
        "visits": int(visits.sum()),
        "last_step": newest if newest >= 0 else None,
        "mean": float(difficulty.mean()) if count else None,
        "median": float(np.median(difficulty)) if count else None,
    }


def histogram(table: pyarrow.Table, bins: int = BINS) -> list[dict[str, Any]]:
    """Prompts by difficulty in bins of equal width, each split by tier."""
    difficulty, tier = column(table, "difficulty"), column(table, "tier")
    place = np.minimum((difficulty * bins).astype(int), bins - 1)
    return [
        {
            "from": index / bins,
            "to": (index + 1) / bins,
            "count": int(np.count_nonzero(place == index)),
            **{name: int(np.count_nonzero((place == index) & (tier == name))) for name in TIERS},
        }
        for index in range(bins)
    ]


def export(table: pyarrow.Table, path: Path) -> None:
    """As CSV or Parquet, by the file's ending."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            pyarrow.csv.write_csv(table, str(path))
        else:
            pyarrow.parquet.write_table(table, str(path))
    except OSError as error:
        raise InvalidInput("--out", str(path), f"cannot be written ({error})") from None


def column(table: pyarrow.Table, name: str) -> Array:
    """A column as an array."""
    values: Array = table[name].to_numpy(zero_copy_only=False)
    return values
