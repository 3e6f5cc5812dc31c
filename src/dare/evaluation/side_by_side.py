"""Evaluations side by side: paired differences, pass@k curves, and which problems each solves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dare.errors import InvalidInput, require
from dare.evaluation.figures import (
    MOST_K,
    columns_of,
    curve_table,
    figures,
    pass_curve,
    tokens_of,
    within,
)
from dare.evaluation.intervals import paired_difference, sign_test
from dare.evaluation.records import RIGHT, Record, by_benchmark, read_records
from dare.runs.found import named
from dare.table import Table

_MOST = 6  # models whose every combination is still listed


def load_named(words: Sequence[str]) -> dict[str, list[Record]]:
    """Records by model: FOLDER, or NAME=FOLDER."""
    require(len(words) >= 2, "RUN", list(words), "name at least two folders of `dare eval`")
    found: dict[str, list[Record]] = {}
    for word in words:
        given, folder = named(word)
        name = given or folder.name
        if name in found:
            raise InvalidInput("RUN", word, f"another one is called {name}; write NAME=FOLDER")
        found[name] = read_records(folder)
    return found


def compare(models: Mapping[str, Sequence[Record]], k: int | None = None) -> dict[str, Any]:
    """For every benchmark that all have: figures on their common problems.

    A problem is solved by a model if one of its first `k` responses is right (all of them where
    `k` is not given). `regions` counts the problems that exactly these models solve.
    """
    require(k is None or k >= 1, "--k", k, "must be at least 1")
    most = max(len(record["scores"]) for records in models.values() for record in records)
    require(k is None or k <= most, "--k", k, f"no problem has more than {most} responses")
    grouped = {name: by_benchmark(records) for name, records in models.items()}
    shared = [b for b in next(iter(grouped.values())) if all(b in one for one in grouped.values())]
    if not shared:
        fix = "they have no benchmark in common"
        raise InvalidInput("RUN", {n: list(one) for n, one in grouped.items()}, fix)
    found = {}
    for item in shared:
        rows = {name: {r["id"]: r for r in one[item]} for name, one in grouped.items()}
        first = next(iter(rows.values()))
        ids = [key for key in first if all(key in one for one in rows.values())]
        if not ids:
            raise InvalidInput(f"benchmark {item}", 0, "the models have no problem in common")
        found[item] = _compared({name: [one[i] for i in ids] for name, one in rows.items()}, k)
        found[item]["left_out"] = max(len(one) for one in rows.values()) - len(ids)
    return found


def _compared(rows: Mapping[str, list[Record]], k: int | None) -> dict[str, Any]:
    columns = {name: columns_of(records) for name, records in rows.items()}
    mean = {name: one.by_problem()[2] for name, one in columns.items()}
    base, *others = rows
    solved = {
        name: np.array([_solved(record, k) for record in records], dtype=bool)
        for name, records in rows.items()
    }
    names, count = list(rows), len(rows[base])
    code = np.zeros(count, np.int64)
    for place, name in enumerate(names):
        code |= solved[name].astype(np.int64) << place
    counts = np.bincount(code, minlength=1 << len(names))
    return {
        "problems": count,
        "models": {name: figures(one) for name, one in columns.items()},
        "pass_at_k": {name: pass_curve(one, MOST_K) for name, one in columns.items()},
        "difference": {name: list(paired_difference(mean[name], mean[base])) for name in others},
        "sign_test": {name: _test(mean[name], mean[base]) for name in others},
        "solved": {name: int(one.sum()) for name, one in solved.items()},
        "regions": [
            {"solved_by": _members(names, place), "problems": int(counts[place])}
            for place in np.argsort(-counts, kind="stable")
            if counts[place]
        ][: 1 << _MOST],
        "only": {
            name: [
                record["id"]
                for record, alone in zip(rows[name], code == 1 << place, strict=True)
                if alone
            ]
            for place, name in enumerate(names)
        },
    }


def _solved(record: Record, k: int | None) -> bool:
    return any(score is not None and score >= RIGHT for score in record["scores"][:k])


def _members(names: Sequence[str], code: Any) -> list[str]:
    return [name for place, name in enumerate(names) if int(code) >> place & 1]


def _test(own: Any, base: Any) -> dict[str, Any]:
    """Problems on which each of the two is ahead, and the exact test of that."""
    better, worse = int((own > base).sum()), int((own < base).sum())
    return {"better": better, "worse": worse, "p": sign_test(better, worse)}


def tables_of(found: Mapping[str, Any]) -> list[Table]:
    """Accuracy and difference, pass@k, and the overlap, a table each for every benchmark."""
    tables = []
    for item, one in found.items():
        names = list(one["models"])
        rows = []
        for name in names:
            own = one["models"][name]
            gap, test = one["difference"].get(name), one["sign_test"].get(name)
            rows.append(
                [
                    *(name, within(own["accuracy"], own["low"], own["high"])),
                    "" if gap is None else within(*gap),
                    "" if test is None else f"{test['better']} : {test['worse']}",
                    "" if test is None else f"{test['p']:.2g}",
                    *(f"{one['solved'][name]} of {one['problems']}", tokens_of(own)),
                ]
            )
        head = ["model", "accuracy", f"more than {names[0]}", "better : worse", "p"]
        head += ["solved", "tokens"]
        tables.append(Table(f"{item}: {one['problems']} problems", head, rows))
        if any(len(curve["k"]) > 1 for curve in one["pass_at_k"].values()):
            title = f"{item}: pass@k in %, against the rollout budget"
            tables.append(curve_table(title, "model", one["pass_at_k"]))
        body = [
            [" + ".join(region["solved_by"]) or "nobody", str(region["problems"])]
            for region in one["regions"]
        ]
        tables.append(Table(f"{item}: problems solved by exactly", ["solved by", "problems"], body))
    return tables
