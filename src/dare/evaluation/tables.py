"""The figures of an evaluation as tables, for the terminal and for Markdown."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from dare.table import Table
from dare.text import legible

SHOWN_K = (1, 2, 4, 8, 16, 32, 64)


def tables_of(figures: Mapping[str, Any]) -> list[Table]:
    """All tables that these figures fill."""
    found = figures["benchmarks"]
    tables = [_overview(figures), _curves(found)]
    for name, one in found.items():
        for key, words in (
            ("by_level", "level"),
            ("by_subject", "subject"),
            ("by_name", "response"),
        ):
            if one.get(key):
                tables.append(_groups(f"{name} by {words}", words, one[key]))
    tables.append(_labels(found))
    return [table for table in tables if table.rows]


def markdown(figures: Mapping[str, Any]) -> str:
    """eval.md."""
    settings = figures["settings"]
    shown = ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)
    return f"# Evaluation\n\n{as_text(shown)}\n\n{page_of(tables_of(figures))}"


def page_of(tables: Sequence[Table]) -> str:
    """Tables as Markdown; names in them may come from anybody's data and stay text."""
    safe = [
        Table(as_text(one.title), _safe(one.head), [_safe(row) for row in one.rows])
        for one in tables
    ]
    return "\n".join(table.markdown() for table in safe)


def as_text(text: str) -> str:
    """One line that a viewer of Markdown shows as it is: no HTML, no control characters."""
    plain = " ".join(legible(text).split())
    return html.escape(plain, quote=False)


def _safe(cells: Sequence[str]) -> list[str]:
    return [as_text(cell) for cell in cells]


def percent(value: float | None) -> str:
    """'71.8', or a dash."""
    return "-" if value is None else f"{100 * value:.1f}"


def within(mean: float | None, low: float | None, high: float | None) -> str:
    """'71.8 [67.7, 75.6]'."""
    if mean is None or low is None or high is None:
        return percent(mean)
    return f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _overview(figures: Mapping[str, Any]) -> Table:
    head = ["benchmark", "problems", "k", "accuracy", "solved", "tokens", "cut off", "unscored"]
    rows = []
    for name, one in figures["benchmarks"].items():
        problems = str(one["problems"])
        if one.get("missing"):
            problems += f" of {one['problems'] + one['missing']}"
        unscored = one["unscored"] / one["responses"] if one["responses"] else None
        rows.append(
            [
                *(name, problems, str(one["samples"])),
                within(one["accuracy"], one["low"], one["high"]),
                percent(one["solved"] / one["problems"]),
                "-" if one["tokens"] is None else f"{one['tokens']:.0f}",
                *(percent(one["truncated"]), percent(unscored)),
            ]
        )
    if len(rows) > 1:
        rows.append(["mean", "", "", percent(figures["mean_accuracy"]), "", "", "", ""])
    title = "Accuracy in % over k responses a problem, with 95 % intervals"
    return Table(title, head, rows)


def _curves(found: Mapping[str, Any]) -> Table:
    curves = {name: one["pass_at_k"] for name, one in found.items() if one.get("pass_at_k")}
    most = max((len(curve["k"]) for curve in curves.values()), default=0)
    ks = [k for k in SHOWN_K if k <= most]
    rows = []
    for name, curve in curves.items():
        cells = [percent(value) for value in curve["mean"]]
        rows.append([name, *(cells[k - 1] if k <= len(cells) else "-" for k in ks)])
    title = "pass@k in %: solved with k responses; all k up to 64 and intervals are in eval.json"
    return Table(title, ["benchmark", *(f"k={k}" for k in ks)], rows)


def _groups(title: str, words: str, groups: Mapping[str, Any]) -> Table:
    head = [words, "problems", "accuracy", "tokens", "cut off"]
    rows = [
        [
            *(name, str(one["problems"]), within(one["accuracy"], one["low"], one["high"])),
            "-" if one["tokens"] is None else f"{one['tokens']:.0f}",
            percent(one["truncated"]),
        ]
        for name, one in groups.items()
    ]
    return Table(title, head, rows)


def _labels(found: Mapping[str, Any]) -> Table:
    head = ["benchmark", "labelled", "agreement", "right by label", "right here"]
    head += ["here only", "label only"]
    rows = [
        [
            *(name, str(labels["responses"]), percent(labels["agreement"])),
            *(str(labels["right_by_labels"]), str(labels["right_here"])),
            *(str(labels["right_here_only"]), str(labels["right_by_labels_only"])),
        ]
        for name, one in found.items()
        if (labels := one.get("labels"))
    ]
    return Table("Beside the verdicts that the responses came with", head, rows)
