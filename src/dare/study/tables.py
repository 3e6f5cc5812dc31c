"""Tables of a comparison as Markdown, CSV and LaTeX, from one list of rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from dare.table import Table as Table


def summary_tables(figures: dict[str, Any]) -> list[Table]:
    """A row a method: what it reaches, how fast, and at what cost."""
    goal, base = figures["target"], figures["base"]
    target = f"{goal:.3f}" if goal is not None else f"the final accuracy of {base}"
    equal = f"At equal tokens ({figures['horizon_tokens']:,.0f})"
    if figures["horizon_seconds"] is not None:
        equal += f" and at equal seconds of training ({figures['horizon_seconds']:,.0f})"
    measured = any(one["estimation_mae"][0] is not None for one in figures["methods"].values())
    titles = {
        f"Accuracy at the end, and gain over {base}. {about_intervals(figures)}": _ACCURACY,
        equal: _EQUAL,
        f"Speed to {target}: how many times fewer than {base} took": _SPEED,
        "Cost" + (", and error of the difficulty estimate" if measured else ""): _COST,
    }
    return [_summary(figures["methods"], title, columns) for title, columns in titles.items()]


def about_intervals(figures: dict[str, Any]) -> str:
    """What the intervals of accuracies and gains take in, and what they leave out."""
    kinds = {method["over"] for method in figures["methods"].values()}
    several = next((kind for kind in kinds if "seeds" in kind), None)
    problems = any("problems" in kind for kind in kinds)
    if several is None:
        return "95 % intervals over problems, of one seed" if problems else "One seed: no intervals"
    text = f"95 % intervals (Student's t) over {several}"
    if not problems:
        return text + ", for these very problems"
    return text + (", of one seed over problems" if len(kinds) > 1 else "")


def _summary(methods: dict[str, Any], title: str, columns: Sequence[tuple[str, str, str]]) -> Table:
    """The columns that any method has figures for."""
    known = [
        column
        for column in columns
        if column[1] == "reached" or any(one[column[1]][0] is not None for one in methods.values())
    ]
    rows = []
    for name, method in methods.items():
        share = f"{method['reached']}/{len(method['seeds'])}"
        cells = [share if key == "reached" else show(method[key], form) for _, key, form in known]
        rows.append([name, *cells])
    return Table(title, ["method", *(column[0] for column in known)], rows)


_ACCURACY = (
    ("accuracy", "accuracy", "{:.3f}"),
    ("gain", "gain", "{:+.3f}"),
    ("AUC", "auc", "{:.3f}"),
    ("tokens a response", "tokens_per_response", "{:.1f}"),
)
_EQUAL = (
    ("accuracy, equal tokens", "accuracy_at_tokens", "{:.3f}"),
    ("gain", "gain_at_tokens", "{:+.3f}"),
    ("accuracy, equal seconds", "accuracy_at_seconds", "{:.3f}"),
    ("gain", "gain_at_seconds", "{:+.3f}"),
)
_SPEED = (
    ("steps (S_τ)", "steps_to_target", "{:.0f}"),
    ("tokens generated", "tokens_to_target", "{:,.0f}"),
    ("tokens trained on", "trained_to_target", "{:,.0f}"),
    ("seconds", "seconds_to_target", "{:.0f}"),
    ("times fewer steps", "step_speed_up", "{:.2f}"),
    ("times fewer tokens", "token_speed_up", "{:.2f}"),
    ("times fewer seconds", "second_speed_up", "{:.2f}"),
    ("seeds that reach it", "reached", ""),
)
_COST = (
    ("steps", "steps", "{:.0f}"),
    ("groups that teach", "varied_groups", "{:.2f}"),
    ("seconds", "seconds", "{:.0f}"),
    ("memory (MB)", "memory_mb", "{:.0f}"),
    ("MAE of estimate", "estimation_mae", "{:.3f}"),
    ("of a fresh group", "fresh_mae", "{:.3f}"),
    ("MSE of estimate", "estimation_mse", "{:.4f}"),
    ("of a fresh group", "fresh_mse", "{:.4f}"),
)


def level_table(figures: dict[str, Any], key: str) -> Table:
    """A row a method, a column a level, of `accuracy` or `tokens` at the end."""
    methods = figures["methods"]
    levels = list(dict.fromkeys(level for one in methods.values() for level in one["by_level"]))
    form = "{:.3f}" if key == "accuracy" else "{:.1f}"
    empty = {key: [None, None, None]}
    rows = [
        [name, *(show(method["by_level"].get(level, empty)[key], form) for level in levels)]
        for name, method in methods.items()
    ]
    title = "Accuracy by level, at the end" if key == "accuracy" else "Tokens a response by level"
    return Table(title, ["method", *levels], rows)


def grid_table(figures: dict[str, Any], fields: Sequence[str], key: str = "accuracy") -> Table:
    """Two swept settings: a row a value of the first, a column a value of the second."""
    cells: dict[tuple[str, str], str] = {}
    for name, method in figures["methods"].items():
        values = dict(pair.split("=", 1) for pair in name.split(","))
        cells[values[fields[0]], values[fields[1]]] = show(method[key], "{:.3f}")
    rows, columns = (list(dict.fromkeys(pair[axis] for pair in cells)) for axis in (0, 1))
    body = [[row, *(cells.get((row, column), "-") for column in columns)] for row in rows]
    title = f"{key}: {fields[0]} (rows) x {fields[1]} (columns)"
    return Table(title, [f"{fields[0]} \\ {fields[1]}", *columns], body)


def runs_csv(figures: dict[str, Any]) -> str:
    """A line a run, every figure of it; levels as level_3_accuracy."""
    lines = []
    for name, method in figures["methods"].items():
        for one in method["runs"]:
            flat = {k: v for k, v in one.items() if k != "by_level" and not k.startswith("curve")}
            for level, part in one["by_level"].items():
                flat |= {f"level_{level}_{key}": value for key, value in part.items()}
            lines.append({"method": name, **flat})
    head = list(dict.fromkeys(key for line in lines for key in line))
    return _csv(head, [[line.get(key) for key in head] for line in lines])


_LISTS = ("seeds", "curve_tokens", "curve_seconds", "runs")


def summary_csv(figures: dict[str, Any]) -> str:
    """A line a method and figure: mean, low, high."""
    rows = []
    for name, method in figures["methods"].items():
        for key, value in method.items():
            if key == "by_level":
                for level, part in value.items():
                    rows += [[name, f"level_{level}_{k}", *part[k]] for k in part]
            elif isinstance(value, list) and key not in _LISTS:
                rows.append([name, key, *value])
    return _csv(["method", "figure", "mean", "low", "high"], rows)


def show(value: Sequence[float | None], form: str) -> str:
    """'0.52 [0.51, 0.53]'; a dash where it is not defined, no interval where it has no width."""
    mean, low, high = value
    if mean is None:
        return "-"
    if low == high:
        return form.format(mean)
    ends = (form.format(end) if end is not None else "-" for end in (low, high))
    return f"{form.format(mean)} [{', '.join(ends)}]"


def _csv(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([head, *rows])
    return text.getvalue()


def tables_of(figures: dict[str, Any], fields: Sequence[str] = ()) -> list[Table]:
    """The summary, the grid of a sweep over two fields, and both tables by level if it has any."""
    two = len(fields) == 2
    levels = [level_table(figures, key) for key in ("accuracy", "tokens")]
    return [
        *(grid_table(figures, fields, key) for key in ("accuracy", "auc") if two),
        *summary_tables(figures),
        *(table for table in levels if len(table.head) > 2),
    ]
