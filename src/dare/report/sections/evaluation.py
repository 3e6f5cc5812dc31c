"""Evaluation tables: those of training, and benchmarks that `dare eval` left in the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare.evaluation.intervals import wilson
from dare.report.blocks import Block, Trace, note, percent, plot, section, short, table
from dare.report.sections.levels import by_number, level_name
from dare.runs.reader import RunData, inner_keys, known
from dare.text import legible

_HEAD = ["accuracy", "interval", "tokens a response", "cut off", "responses"]


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
    head = ["step", "tokens so far", *_HEAD]
    return [table("evaluations", "During training", "The newest first.", head, rows)]


def _cells(record: Mapping[str, Any]) -> list[str]:
    def value(key: str) -> float | None:
        return known(record.get(key))

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
    steps = [f"at step {record['step']:,}" for record in (first, last)]
    head = ["level", *steps, *_HEAD[1:]]
    return [
        table("evaluation-levels", "By level", "The first and the last evaluation.", head, rows)
    ]


def _part(record: Mapping[str, Any], level: str) -> Mapping[str, Any]:
    held = record.get("by_level")
    part = held.get(level) if isinstance(held, dict) else None
    return part if isinstance(part, dict) else {}


_K = (1, 4, 8, 16, 32, 64)


def benchmark_blocks(evaluations: Mapping[str, Any]) -> list[Block]:
    """A table and, where problems were answered several times, pass@k of each evaluation."""
    blocks: list[Block] = []
    for label, held in evaluations.items():
        listed = held.get("benchmarks") if isinstance(held, dict) else None
        parts = listed if isinstance(listed, dict) else {}
        named = {legible(str(n), 60): p for n, p in parts.items() if isinstance(p, dict)}
        if named:
            blocks.append(_benchmark_table(label, held, named))
            blocks += _pass_at_k(label, named)
    return blocks


def _benchmark_table(label: str, held: Mapping[str, Any], parts: Mapping[str, Any]) -> Block:
    ks = [k for k in _K if k > 1 and any(_pass(part, k) is not None for part in parts.values())]
    head = ["benchmark", "accuracy", "interval", "problems", "tokens a response", "cut off"]
    rows = []
    for name, part in parts.items():
        low, high = known(part.get("low")), known(part.get("high"))
        ends = "-" if low is None or high is None else f"{100 * low:.1f} - {100 * high:.1f} %"
        tokens = known(part.get("tokens"))
        rows.append(
            [
                name,
                percent(known(part.get("accuracy"))),
                ends,
                short(known(part.get("problems"))),
                "-" if tokens is None else f"{tokens:,.1f}",
                percent(known(part.get("truncated"))),
                *(percent(_pass(part, k)) for k in ks),
            ]
        )
    mean = known(held.get("mean_accuracy"))
    overall = f" Mean over benchmarks: {percent(mean)}." if mean is not None else ""
    caption = f"From {label}, as dare eval wrote it.{overall}"
    return table(
        f"benchmarks {label}", "Benchmarks", caption, [*head, *(f"pass@{k}" for k in ks)], rows
    )


def _pass_at_k(label: str, parts: Mapping[str, Any]) -> list[Block]:
    traces: list[Trace] = []
    for place, (name, part) in enumerate(parts.items()):
        held = part.get("pass_at_k")
        k = held.get("k") if isinstance(held, dict) else None
        mean = held.get("mean") if isinstance(held, dict) else None
        if isinstance(k, list) and isinstance(mean, list) and len(k) == len(mean) > 1:
            x, y = [known(v) for v in k], [known(v) for v in mean]
            traces.append(
                {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name}
                | {"colour": f"series:{place}"}
            )
    if not traces:
        return []
    caption = "Share of problems that at least one of k responses solves (unbiased estimate)."
    more = {"xaxis": {"type": "log", "dtick": 0.30102999566}}
    return [
        plot(
            f"pass-at-k {label}", "pass@k", caption, traces,
            x="k", legend=True, share=True, wide=True, layout=more,
        )
    ]  # fmt: skip


def _pass(part: Mapping[str, Any], k: int) -> float | None:
    held = part.get("pass_at_k")
    if not isinstance(held, dict) or not isinstance(held.get("k"), list):
        return None
    mean = held.get("mean")
    if k not in held["k"] or not isinstance(mean, list) or len(mean) != len(held["k"]):
        return None
    value = mean[held["k"].index(k)]
    return known(value)
