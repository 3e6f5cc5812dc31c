"""Runs against each other: means over seeds with intervals, as `dare compare` counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput
from dare.report.blocks import (
    DASHES,
    RUN_COLOURS,
    Block,
    Trace,
    note,
    numbers,
    plot,
    section,
    table,
)
from dare.report.sections.levels import level_name
from dare.runs.methods import Run, settings_of
from dare.runs.reader import RunData, known, number, values
from dare.study.comparison import compare_runs
from dare.study.tables import level_table, summary_tables
from dare.text import legible


def comparison(runs: Sequence[RunData], methods: Sequence[str]) -> dict[str, Any]:
    """Curves and tables by method; says which runs cannot be compared, and why."""
    intro = (
        "Runs of one method with different seeds count as one. Bands, whiskers and brackets are "
        "95 % intervals by Student's t, over seeds and, where every run kept the score of each "
        "problem, over problems too."
    )
    usable = [place for place, run in enumerate(runs) if _usable(run)]
    blocks: list[Block] = []
    left = [runs[place].name for place in range(len(runs)) if place not in usable]
    if left:
        blocks.append(note(f"Left out, for want of evaluations or steps: {', '.join(left)}."))
    if len(usable) < 2:
        blocks.append(note("Nothing to compare yet: it takes two runs with an evaluation each."))
    else:
        # As in the training curves: of all methods, also those that are left out here.
        place_of = dict(zip(methods, colour_places(methods).tolist(), strict=True))
        colours = {name: f"run:{place}" for name, place in place_of.items()}
        chosen = [runs[place] for place in usable], [methods[place] for place in usable]
        blocks += _compared(*chosen, colours)
    return section("comparison", "Comparison", intro, blocks)


def method_names(runs: Sequence[RunData]) -> list[str]:
    """The method of each run, or its own name where a method has unequal settings or a seed twice.

    Runs of a study, and those that were named by hand, keep their names.
    """
    settings: dict[str, set[str]] = {}
    seeds: dict[str, list[int]] = {}
    for run in runs:
        settings.setdefault(run.method, set()).add(settings_of(run.config))
        seeds.setdefault(run.method, []).append(run.seed)
    names = []
    for run in runs:
        by_hand = (run.folder / "job.json").is_file() or not run.config
        mixed = (
            len(settings[run.method]) > 1 and not by_hand and run.method == run.training("preset")
        )
        repeated = len(set(seeds[run.method])) < len(seeds[run.method])
        names.append(run.name if mixed or repeated else run.method)
    return names


def _usable(run: RunData) -> bool:
    scored = np.isfinite(values(run.evaluations, "accuracy")).sum()
    return bool(scored and len(run.metrics) and np.isfinite(run.tokens).all())


def _compared(
    runs: Sequence[RunData], methods: Sequence[str], colours: Mapping[str, str]
) -> list[Block]:
    found = [
        Run(name, run.seed, run.folder, *_clean(run))
        for run, name in zip(runs, methods, strict=True)
    ]
    try:
        figures = compare_runs(found)
    except InvalidInput as error:
        return [note(f"Nothing to compare: {error.fix}.")]
    return compared(figures, colours)


def compared(figures: dict[str, Any], colours: Mapping[str, str]) -> list[Block]:
    """The pictures of a comparison, then its tables."""
    shown = [plot for plots in pictures(figures, colours).values() for plot in plots]
    levels = [level_table(figures, key) for key in ("accuracy", "tokens")]
    for place, one in enumerate([*summary_tables(figures), *levels]):
        if len(one.head) > 1:
            shown.append(table(f"comparison-{place}", one.title, "", one.head, one.rows))
    return shown


def pictures(figures: dict[str, Any], colours: Mapping[str, str]) -> dict[str, list[Block]]:
    """Curves over tokens and seconds, bars by level, ends and speed: plots by picture."""
    seconds, methods = figures["grid_seconds"] is not None, figures["methods"].values()
    found = {"curves": [_curves(figures, colours, "tokens")]}
    if seconds:
        found["seconds"] = [_curves(figures, colours, "seconds")]
    if any(method["by_level"] for method in methods):
        found["levels"] = [_levels(figures, colours, key) for key in ("accuracy", "tokens")]
    known = [key for key in _ENDS if any(method[key][0] is not None for method in methods)]
    found["final"] = [_ends(figures, colours, key) for key in known]
    return found


def _clean(run: RunData) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Evaluations and steps with everything that a comparison reads."""
    evaluations = []
    for record in run.evaluations:
        accuracy, tokens = values([record], "accuracy")[0], values([record], "tokens")[0]
        total = values([record], "generated_tokens_total")[0]
        if np.isfinite([accuracy, total]).all():
            levels = record.get("by_level")
            parts = levels if isinstance(levels, dict) else {}
            whole = {
                level_name(name): {
                    **{key: known(part.get(key)) for key in ("accuracy", "tokens")},
                    "by_problem": _scores(part),
                }
                for name, part in parts.items()
                if isinstance(part, dict)
            }
            evaluations.append(
                {
                    "step": record["step"],
                    "accuracy": float(accuracy),
                    "tokens": float(tokens) if np.isfinite(tokens) else None,
                    "generated_tokens_total": float(total),
                    "by_level": whole,
                    "by_problem": _scores(record),
                    "problem_set": legible(str(record.get("problem_set", "")), 60),
                }
            )
    metrics = []
    for record, total, spent in zip(
        run.metrics, run.tokens, np.diff(run.seconds, prepend=0.0), strict=True
    ):
        line: dict[str, Any] = {"step": record["step"], "generated_tokens_total": float(total)}
        if spent > 0:
            line["seconds"] = {"all": float(spent)}
        for key in ("memory_mb", "varied_groups"):
            held = known(record.get(key))
            if held is not None:
                line[key] = held
        metrics.append(line)
    return evaluations, metrics


def _scores(part: Mapping[str, Any]) -> list[float]:
    """Score of each problem, NaN where it has none; nothing where the run kept none."""
    held = part.get("by_problem")
    return [number(value) for value in held] if isinstance(held, list) else []


def _curves(figures: dict[str, Any], colours: Mapping[str, str], axis: str) -> Block:
    traces: list[Trace] = []
    x = numbers(np.array(figures[f"grid_{axis}"]), 7)
    for name, method in figures["methods"].items():
        mean, low, high = (
            np.array(side, dtype=float) for side in zip(*method[f"curve_{axis}"], strict=True)
        )
        if np.isfinite(low).all():
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": [*x, *x[::-1]],
                    "y": [*numbers(high), *numbers(low)[::-1]],
                    "fill": "toself",
                    "colour": colours[name],
                    "hoverinfo": "skip",
                    "showlegend": False,
                    "group": name,
                }
            )
        label = f"{name} ({len(method['seeds'])} seeds)" if len(method["seeds"]) > 1 else name
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": x,
                "y": numbers(mean),
                "name": label,
                "colour": colours[name],
                "group": name,
                "line": {"dash": _dash(colours[name])},
            }
        )
    words = {"tokens": "generated tokens", "seconds": "seconds of training"}[axis]
    caption = f"Held-out accuracy over {words}, as far as all runs have come."
    if axis == "seconds":
        caption += " Evaluation is not counted."
    return plot(
        "comparison-curves" if axis == "tokens" else "comparison-seconds",
        f"Accuracy at equal {axis}",
        caption,
        traces,
        x=words,
        legend=True,
        share=True,
        wide=True,
        height=360,
    )


def _levels(figures: dict[str, Any], colours: Mapping[str, str], key: str) -> Block:
    """A bar a method and level, at the end."""
    traces: list[Trace] = []
    for name, method in figures["methods"].items():
        parts = {level: part[key] for level, part in method["by_level"].items()}
        bar = {"type": "bar", "x": list(parts), "y": [part[0] for part in parts.values()]}
        whiskers = _whiskers(list(parts.values()))
        traces.append(
            {**bar, "name": name, "colour": colours[name], "group": name, "error_y": whiskers}
        )
    share = key == "accuracy"
    title = "Accuracy by level" if share else "Tokens a response by level"
    options: dict[str, Any] = {"legend": True, "share": share, "height": 320}
    options["layout"] = {"xaxis": {"type": "category"}}
    return plot(f"comparison-{key}", title, "At the end.", traces, x="level", **options)


# Figure, title and caption of each plot of the ends.
_ENDS = {
    "accuracy": (
        "Final accuracy",
        "At the last evaluation of each run. Whiskers that overlap leave the order open.",
    ),
    "auc": ("AUC", "Mean accuracy over the tokens that all runs have generated."),
    "token_speed_up": ("Times fewer tokens", "Than the base until it reached the target."),
    "second_speed_up": ("Times fewer seconds", "Than the base until it reached the target."),
}


def _ends(figures: dict[str, Any], colours: Mapping[str, str], key: str) -> Block:
    title, caption = _ENDS[key]
    traces: list[Trace] = []
    for name, method in figures["methods"].items():
        dot = {"type": "scatter", "mode": "markers", "x": [method[key][0]], "y": [name]}
        look = {"colour": colours[name], "marker": {"size": 10}}
        traces.append({**dot, **look, "name": name, "error_x": _whiskers([method[key]])})
    rate = {"tickformat": ".3~p"} if key in ("accuracy", "auc") else {}
    names = {"automargin": True, "type": "category", "autorange": "reversed"}
    return plot(
        "comparison-ends" if key == "accuracy" else f"comparison-{key}",
        title,
        caption,
        traces,
        x=title,
        wide=key == "accuracy",
        height=130 + 34 * len(traces),
        layout={"xaxis": rate, "yaxis": names},
    )


def _whiskers(values: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    def sides(high: int, low: int) -> list[float]:
        pairs = [(value[high], value[low]) for value in values]
        return [0.0 if up is None or down is None else up - down for up, down in pairs]

    look = {"type": "data", "thickness": 2, "width": 5}
    return {**look, "array": sides(2, 0), "arrayminus": sides(0, 1)}


def _dash(colour: str) -> str:
    """Solid as long as colours last, then broken: two methods never look the same."""
    return DASHES[int(colour.partition(":")[2]) // RUN_COLOURS % len(DASHES)]


def colour_places(methods: Sequence[str]) -> Array:
    """A colour a method; a colour a run where there is one method only."""
    order = list(dict.fromkeys(methods))
    if len(order) == 1:
        return np.arange(len(methods))
    return np.array([order.index(name) for name in methods])
