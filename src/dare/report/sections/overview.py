"""At a glance: what was run and how far it got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dare.report.blocks import Block, duration, percent, section, short, table, tiles
from dare.report.folder import RunData
from dare.report.lines import values


def overview(runs: Sequence[RunData]) -> dict[str, Any]:
    """Tiles of one run, or a table of several."""
    intro = "What was run, how far it got and what it cost."
    blocks = [_tiles(runs[0])] if len(runs) == 1 else [_table(runs)]
    return section("overview", "Overview", intro, blocks)


def accuracies(run: RunData) -> tuple[float | None, float | None]:
    """Held-out accuracy of the first and of the last evaluation."""
    found = values(run.evaluations, "accuracy")
    found = found[np.isfinite(found)]
    return (float(found[0]), float(found[-1])) if len(found) else (None, None)


def late(run: RunData, *keys: str) -> float | None:
    """Mean over the last tenth of the steps, or the last five where that is more."""
    found = values(run.metrics, *keys)
    found = found[-max(5, len(found) // 10) :]
    found = found[np.isfinite(found)]
    return float(found.mean()) if len(found) else None


def _tiles(run: RunData) -> Block:
    first, last = accuracies(run)
    seconds = float(run.seconds[-1]) if len(run.seconds) else 0.0
    tokens = run.tokens[np.isfinite(run.tokens)]
    memory = values(run.metrics, "memory_mb")
    peak = float(np.nanmax(memory)) if np.isfinite(memory).any() else None
    gain = "" if first is None else f"from {percent(first)} at the first evaluation"
    if last is None:
        gain = "no evaluation yet"
    planned = run.config.get("steps", run.training("max_steps"))
    steps = int(run.step[-1]) + 1 if len(run.step) else 0
    total = f"of {planned:,}" if isinstance(planned, int) and planned > 0 else ""
    prompts = run.config.get("prompts")
    of = f"of {prompts:,} prompts" if isinstance(prompts, int) else ""
    return tiles(
        [
            ("Method", run.method, f"seed {run.seed}"),
            ("Accuracy", percent(last), gain),
            ("Reward", short(late(run, "reward")), "mean of the last steps, training prompts"),
            ("Steps", f"{steps:,}", total),
            ("Generated tokens", short(float(tokens[-1]) if len(tokens) else None), ""),
            ("Time", duration(seconds), "all phases, without evaluation"),
            ("Seen", percent(newest(run, "coverage")), of),
            ("Peak memory", "-" if peak is None else f"{peak:,.0f} MB", ""),
        ]
    )


def newest(run: RunData, key: str) -> float | None:
    """The last value there is."""
    found = values(run.metrics, key)
    found = found[np.isfinite(found)]
    return float(found[-1]) if len(found) else None


def _table(runs: Sequence[RunData]) -> Block:
    head = ["run", "accuracy", "at first", "reward", "steps", "tokens", "time", "method", "seed"]
    rows = []
    for run in runs:
        first, last = accuracies(run)
        tokens = run.tokens[np.isfinite(run.tokens)]
        rows.append(
            [
                run.name,
                percent(last),
                percent(first),
                short(late(run, "reward")),
                f"{int(run.step[-1]) + 1:,}" if len(run.step) else "0",
                short(float(tokens[-1]) if len(tokens) else None),
                duration(float(run.seconds[-1]) if len(run.seconds) else 0.0),
                run.method,
                str(run.seed),
            ]
        )
    caption = "Accuracy is that of the last evaluation; reward the mean of the last steps."
    return table("runs", "Runs", caption, head, rows)
