"""Runs against each other: means over seeds with intervals, as `dare compare` counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dare.errors import InvalidInput
from dare.report.blocks import (
    DASHES,
    RUN_COLOURS,
    Block,
    Trace,
    area,
    curve,
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
    pairs = [(run, method) for run, method in zip(runs, methods, strict=True) if _usable(run)]
    blocks: list[Block] = []
    left = [run.name for run in runs if not _usable(run)]
    if left:
        blocks.append(note(f"Left out, for want of evaluations or steps: {', '.join(left)}."))
    if len(pairs) < 2:
        blocks.append(note("Nothing to compare yet: it takes two runs with an evaluation each."))
    else:
        # As in the training curves: of all methods, also those that are left out here.
        colours = dict(zip(methods, colours_of(methods), strict=True))
        found = [Run(method, run.seed, run.folder, *_clean(run)) for run, method in pairs]
        try:
            blocks += compared(compare_runs(found), colours)
        except InvalidInput as error:
            blocks.append(note(f"Nothing to compare: {error.fix}."))
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


def _clean(
    run: RunData,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, float | None]]:
    """Evaluations, steps and error of the estimate, with everything that a comparison reads."""
    evaluations = []
    for record in run.evaluations:
        total = known(record.get("generated_tokens_total"))
        if total is None or known(record.get("accuracy")) is None:
            continue
        parts = record.get("by_level")
        levels = parts.items() if isinstance(parts, dict) else ()
        evaluations.append(
            {
                "step": record["step"],
                "generated_tokens_total": total,
                "by_level": {level_name(n): _part(p) for n, p in levels if isinstance(p, dict)},
                "problem_set": legible(str(record.get("problem_set", "")), 60),
                **_part(record),
            }
        )
    metrics = []
    for record, total, spent in zip(
        run.metrics, run.tokens, np.diff(run.seconds, prepend=0.0), strict=True
    ):
        held = {key: known(record.get(key)) for key in ("memory_mb", "varied_groups")}
        line = {"step": record["step"], "generated_tokens_total": float(total)}
        line |= {key: value for key, value in held.items() if value is not None}
        metrics.append(line | ({"seconds": {"all": float(spent)}} if spent > 0 else {}))
    held = run.estimation if isinstance(run.estimation, dict) else {}
    error = {key: known(held.get(key)) for key in ("mae", "mse", "mae_fresh", "mse_fresh")}
    return evaluations, metrics, error


def _part(held: Mapping[str, Any]) -> dict[str, Any]:
    """Of all problems or of a level: its figures, and the scores it kept, NaN for one of none."""
    scores = held.get("by_problem")
    by_problem = [number(score) for score in scores] if isinstance(scores, list) else []
    figures = {key: known(held.get(key)) for key in ("accuracy", "tokens")}
    return {**figures, "by_problem": by_problem}


def _curves(figures: dict[str, Any], colours: Mapping[str, str], axis: str) -> Block:
    bands: list[Trace] = []
    lines: list[Trace] = []
    x = numbers(np.array(figures[f"grid_{axis}"]), 7)
    for name, method in figures["methods"].items():
        mean, low, high = (
            np.array(side, dtype=float) for side in zip(*method[f"curve_{axis}"], strict=True)
        )
        if np.isfinite(low).all():
            bands.append(area(low, high, colours[name], x=[*x, *x[::-1]], group=name))
        label = f"{name} ({len(method['seeds'])} seeds)" if len(method["seeds"]) > 1 else name
        look = {"group": name, "line": {"dash": _dash(colours[name])}}
        lines.append(curve(x, numbers(mean), colours[name], label, **look))
    words = {"tokens": "generated tokens", "seconds": "seconds of training"}[axis]
    caption = f"Held-out accuracy over {words}, as far as all runs have come."
    if axis == "seconds":
        caption += " Evaluation is not counted."
    name = "comparison-curves" if axis == "tokens" else "comparison-seconds"
    wide: dict[str, Any] = {"x": words, "legend": True, "share": True, "wide": True, "height": 360}
    # A band over a line would dull its colour.
    return plot(name, f"Accuracy at equal {axis}", caption, [*bands, *lines], **wide)


def _levels(figures: dict[str, Any], colours: Mapping[str, str], key: str) -> Block:
    """A bar a method and level, at the end."""
    traces: list[Trace] = []
    for name, method in figures["methods"].items():
        parts = {level: part[key] for level, part in method["by_level"].items()}
        y, whiskers = [part[0] for part in parts.values()], _whiskers(list(parts.values()))
        bar = {"type": "bar", "x": list(parts), "y": y, "error_y": whiskers}
        traces.append({**bar, "name": name, "group": name, "colour": colours[name]})
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
        look = {"mode": "markers", "marker": {"size": 10}, "error_x": _whiskers([method[key]])}
        traces.append(curve([method[key][0]], [name], colours[name], name, **look))
    rate = {"tickformat": ".3~p"} if key in ("accuracy", "auc") else {}
    names = {"automargin": True, "type": "category", "range": [len(figures["methods"]) - 0.5, -0.5]}
    options: dict[str, Any] = {"x": title, "wide": key == "accuracy"}
    options |= {"height": 130 + 34 * len(traces), "layout": {"xaxis": rate, "yaxis": names}}
    place = "comparison-ends" if key == "accuracy" else f"comparison-{key}"
    return plot(place, title, caption, traces, **options)


def _whiskers(values: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    def sides(high: int, low: int) -> list[float]:
        pairs = [(value[high], value[low]) for value in values]
        return [0.0 if up is None or down is None else up - down for up, down in pairs]

    look = {"type": "data", "thickness": 2, "width": 5}
    known = any(None not in value for value in values)  # of no length they would be specks
    return {**look, "visible": known, "array": sides(2, 0), "arrayminus": sides(0, 1)}


def _dash(colour: str) -> str:
    """Solid as long as colours last, then broken: two methods never look the same."""
    return DASHES[int(colour.partition(":")[2]) // RUN_COLOURS % len(DASHES)]


def colours_of(methods: Sequence[str]) -> list[str]:
    """A colour a method; a colour a run where there is one method only."""
    order = list(dict.fromkeys(methods))
    places = range(len(methods)) if len(order) == 1 else map(order.index, methods)
    return [f"run:{place}" for place in places]
