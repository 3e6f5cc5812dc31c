"""Where the seconds, the tokens and the memory go."""

from __future__ import annotations

import numpy as np

from dare.report.blocks import Block, View, duration, note, of_each_run, percent, plot, short, table
from dare.runs.reader import RunData, inner_keys, values

_PHASES = 8
_STACKED = {
    "seconds": ("Seconds of a step", "Which phase takes how long."),
    "tokens": (
        "Tokens of a step",
        "Generated: sampled. Scored: read again for log-probs. Refreshed: read to "
        "realign the estimate. Trained: in the gradient.",
    ),
}


@of_each_run(
    "cost",
    "Time and memory",
    "A step is plan, generate, reward, score, train, update, refresh. Evaluation is not counted.",
)
def cost(view: View) -> list[Block]:
    """Phases of a step, tokens by use and memory."""
    if not view.run.metrics:
        return [note("No step has been written yet.")]
    stacked = [_stacked(view, key, *words) for key, words in _STACKED.items()]
    return [*stacked, _memory(view), *_totals(view.run)]


def _stacked(view: View, key: str, title: str, caption: str) -> Block:
    metrics = view.run.metrics
    names = inner_keys(metrics, key)[:_PHASES]
    if not names:
        return note(f"{title}: metrics.jsonl has no {key}.")
    parts = {name: np.nan_to_num(values(metrics, key, name)) for name in names}
    colours = [f"series:{index}" for index in range(len(names))]
    traces = view.layers(parts, colours)
    if key == "tokens":  # the same tokens are generated, scored and trained: no sum of parts
        rows = zip(parts.items(), colours, strict=True)
        traces = [view.line(y, colour, name, smooth=True) for (name, y), colour in rows]
    return plot(f"cost-{key}", title, caption, traces, y=key, legend=True, height=340)


def _memory(view: View) -> Block:
    found = values(view.run.metrics, "memory_mb")
    if not np.isfinite(found).any():
        return note("Memory: metrics.jsonl has no memory_mb.")
    caption = "Peak so far: of the GPU where one is used, otherwise of the process."
    more = {"yaxis": {"rangemode": "tozero", "tickformat": ",.0f"}}
    traces = [view.line(found, "main", "peak")]
    return plot("memory", "Memory", caption, traces, y="MB", height=340, layout=more)


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
