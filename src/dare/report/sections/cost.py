"""Where the seconds, the tokens and the memory go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dare.report.blocks import (
    Axes,
    Block,
    duration,
    layers,
    line,
    note,
    percent,
    plot,
    section,
    short,
    table,
)
from dare.runs.reader import RunData, inner_keys, values

_PHASES = 8


def cost(runs: Sequence[RunData], axes: Axes) -> dict[str, Any]:
    """Phases of a step, tokens by use and memory, for each run."""
    intro = "A step is plan, generate, reward, score, train, refresh. Evaluation is not counted."
    by_run = [_blocks(run, place, axes) for place, run in enumerate(runs)]
    return section("cost", "Time and memory", intro, by_run=by_run)


def _blocks(run: RunData, place: int, axes: Axes) -> list[Block]:
    if not run.metrics:
        return [note("No step has been written yet.")]
    return [
        *_stacked(
            run,
            place,
            axes,
            "seconds",
            "Seconds of a step",
            "Which phase takes how long.",
            "seconds",
        ),
        *_stacked(
            run,
            place,
            axes,
            "tokens",
            "Tokens of a step",
            "Generated: sampled. Scored: read again for log-probs. Refreshed: read to "
            "realign the estimate. Trained: in the gradient.",
            "tokens",
        ),
        *_memory(run, place, axes),
        *_totals(run),
    ]


def _stacked(
    run: RunData, place: int, axes: Axes, key: str, title: str, caption: str, unit: str
) -> list[Block]:
    names = inner_keys(run.metrics, key)[:_PHASES]
    parts = {n: axes.thin(place, np.nan_to_num(values(run.metrics, key, n))) for n in names}
    if not names:
        return [note(f"{title}: metrics.jsonl has no {key}.")]
    colours = [f"series:{index}" for index in range(len(names))]
    traces = layers(parts, axes.of(place), colours)
    if key == "tokens":  # the same tokens are generated, scored and trained: no sum of parts
        rows = zip(parts.items(), colours, strict=True)
        traces = [line(y, axes.of(place), c, name, smooth=True) for (name, y), c in rows]
    return [plot(f"cost-{key}", title, caption, traces, y=unit, legend=True, height=340)]


def _memory(run: RunData, place: int, axes: Axes) -> list[Block]:
    found = values(run.metrics, "memory_mb")
    if not np.isfinite(found).any():
        return [note("Memory: metrics.jsonl has no memory_mb.")]
    trace = line(axes.thin(place, found), axes.of(place), "main", "peak")
    caption = "Peak so far: of the GPU where one is used, otherwise of the process."
    more = {"yaxis": {"rangemode": "tozero", "tickformat": ",.0f"}}
    return [plot("memory", "Memory", caption, [trace], y="MB", height=340, layout=more)]


def _totals(run: RunData) -> list[Block]:
    """Each phase over the whole run."""
    names = inner_keys(run.metrics, "seconds")
    total = {name: float(np.nansum(values(run.metrics, "seconds", name))) for name in names}
    whole = sum(total.values())
    if whole <= 0:
        return []
    steps = len(run.metrics)
    rows = [
        [name, duration(spent), percent(spent / whole), f"{short(spent / steps)} s"]
        for name, spent in sorted(total.items(), key=lambda pair: -pair[1])
    ]
    generated = float(np.nansum(values(run.metrics, "tokens", "generated")))
    speed = f" {short(generated / whole)} generated tokens a second over all." if generated else ""
    caption = f"Totals of {steps:,} steps.{speed}"
    return [table("phases", "Phases", caption, ["phase", "time", "share", "a step"], rows)]
