"""Evaluation tables: those of training, and benchmarks that `dare eval` left in the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dare.evaluation.intervals import wilson
from dare.report.blocks import Block, note, percent, section, short, table
from dare.report.folder import RunData
from dare.report.lines import inner_keys, values
from dare.report.sections.benchmarks import benchmark_blocks
from dare.report.sections.levels import by_number, level_name


def evaluation(runs: Sequence[RunData]) -> dict[str, Any]:
    """Tables of each run."""
    intro = "Accuracy with its 95 % Wilson interval; unscored responses are left out of it."
    return section("evaluation", "Evaluation", intro, by_run=[_blocks(run) for run in runs])


def _blocks(run: RunData) -> list[Block]:
    blocks = [*_history(run), *_levels(run), *benchmark_blocks(run.benchmarks)]
    text = "No evaluation yet: eval.jsonl is empty, and there is no eval.json of dare eval."
    return blocks or [note(text)]


def _history(run: RunData) -> list[Block]:
    if not run.evaluations:
        return []
    rows = []
    for record in reversed(run.evaluations):
        rows.append([f"{record['step']:,}", *_cells(record)])
    head = [
        "step",
        "tokens so far",
        "accuracy",
        "interval",
        "tokens a response",
        "cut off",
        "responses",
    ]
    return [table("evaluations", "During training", "The newest first.", head, rows)]


def _cells(record: Mapping[str, Any]) -> list[str]:
    def value(key: str) -> float | None:
        found = float(values([dict(record)], key)[0])
        return found if np.isfinite(found) else None

    return [
        short(value("generated_tokens_total")),
        percent(value("accuracy")),
        interval(value("accuracy"), value("responses"), value("unscored")),
        "-" if value("tokens") is None else f"{value('tokens'):,.1f}",
        percent(value("truncated")),
        short(value("responses")),
    ]


def interval(accuracy: float | None, responses: float | None, unscored: float | None) -> str:
    """'42.1 - 46.3 %', or a dash where it cannot be known."""
    trials = (responses or 0.0) - (unscored or 0.0)
    if accuracy is None or not 0 <= accuracy <= 1 or trials <= 0:
        return "-"
    low, high = wilson(accuracy, trials)
    return f"{100 * low:.1f} - {100 * high:.1f} %"


def _levels(run: RunData) -> list[Block]:
    """First and last evaluation, level by level."""
    names = by_number(inner_keys(run.evaluations, "by_level"))
    if len(names) < 2:
        return []
    first, last = run.evaluations[0], run.evaluations[-1]
    rows = []
    for name in names:
        then, now = (_part(record, name) for record in (first, last))
        cells = _cells(now)
        before = _cells(then)[1]
        rows.append([level_name(name), before, *cells[1:]])
    head = [
        "level",
        f"at step {first['step']:,}",
        f"at step {last['step']:,}",
        "interval",
        "tokens a response",
        "cut off",
        "responses",
    ]
    return [
        table("evaluation-levels", "By level", "The first and the last evaluation.", head, rows)
    ]


def _part(record: Mapping[str, Any], level: str) -> Mapping[str, Any]:
    held = record.get("by_level")
    part = held.get(level) if isinstance(held, dict) else None
    return part if isinstance(part, dict) else {}
