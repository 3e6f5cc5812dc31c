"""Evaluation tables: those of training, and benchmarks that `dare eval` left in the folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare.evaluation.intervals import wilson
from dare.report.blocks import Block, View, curve, note, of_each_run, percent, plot, short, table
from dare.report.sections.levels import level_name
from dare.runs.reader import RunData, inner_keys, known
from dare.text import legible, natural

_HEAD = ["accuracy", "interval", "tokens a response", "cut off", "responses"]


@of_each_run(
    "evaluation",
    "Evaluation",
    "Accuracy with its 95 % Wilson interval; unscored responses are left out of it.",
)
def evaluation(view: View) -> list[Block]:
    """Tables of a run."""
    run = view.run
    blocks = [*_history(run), *_levels(run), *benchmark_blocks(run.benchmarks)]
    text = "No evaluation yet: eval.jsonl is empty, and there is no eval.json of dare eval."
    return blocks or [note(text)]


def _history(run: RunData) -> list[Block]:
    if not run.evaluations:
        return []
    rows = [[f"{record['step']:,}", *_cells(record)] for record in reversed(run.evaluations)]
    head = ["step", "tokens so far", *_HEAD]
    return [table("evaluations", "During training", "The newest first.", head, rows)]


def _cells(record: Mapping[str, Any]) -> list[str]:
    def value(key: str) -> float | None:
        return known(record.get(key))

    return [
        short(value("generated_tokens_total")),
        percent(value("accuracy")),
        interval(value("accuracy"), value("responses"), value("unscored")),
        _tokens(record),
        percent(value("truncated")),
        short(value("responses")),
    ]


def _tokens(record: Mapping[str, Any]) -> str:
    tokens = known(record.get("tokens"))
    return "-" if tokens is None else f"{tokens:,.1f}"


def _span(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{100 * low:.1f} - {100 * high:.1f} %"


def interval(accuracy: float | None, responses: float | None, unscored: float | None) -> str:
    """'42.1 - 46.3 %', or a dash where it cannot be known."""
    trials = (responses or 0.0) - (unscored or 0.0)
    if accuracy is None or not 0 <= accuracy <= 1 or trials <= 0:
        return "-"
    return _span(*wilson(accuracy, trials))


def _levels(run: RunData) -> list[Block]:
    """First and last evaluation, level by level."""
    names = sorted(inner_keys(run.evaluations, "by_level"), key=natural)
    if len(names) < 2:
        return []
    first, last = run.evaluations[0], run.evaluations[-1]
    rows = []
    for name in names:
        then, now = (_part(record, name) for record in (first, last))
        rows.append([level_name(name), _cells(then)[1], *_cells(now)[1:]])
    steps = [f"at step {record['step']:,}" for record in (first, last)]
    head = ["level", *steps, *_HEAD[1:]]
    return [
        table("evaluation-levels", "By level", "The first and the last evaluation.", head, rows)
    ]


def _part(record: Mapping[str, Any], level: str) -> Mapping[str, Any]:
    held = record.get("by_level")
    part = held.get(level) if isinstance(held, dict) else None
    return part if isinstance(part, dict) else {}


_K = (4, 8, 16, 32, 64)


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
    passed = [dict(_pass_curve(part)) for part in parts.values()]
    ks = [k for k in _K if any(one.get(k) is not None for one in passed)]
    head = ["benchmark", "accuracy", "interval", "problems", "tokens a response", "cut off"]
    rows = []
    for (name, part), one in zip(parts.items(), passed, strict=True):
        rows.append(
            [
                name,
                percent(known(part.get("accuracy"))),
                _span(known(part.get("low")), known(part.get("high"))),
                short(known(part.get("problems"))),
                _tokens(part),
                percent(known(part.get("truncated"))),
                *(percent(one.get(k)) for k in ks),
            ]
        )
    mean = known(held.get("mean_accuracy"))
    overall = f" Mean over benchmarks: {percent(mean)}." if mean is not None else ""
    caption = f"From {label}, as dare eval wrote it.{overall}"
    return table(
        f"benchmarks {label}", "Benchmarks", caption, [*head, *(f"pass@{k}" for k in ks)], rows
    )


def _pass_at_k(label: str, parts: Mapping[str, Any]) -> list[Block]:
    traces = []
    for place, (name, part) in enumerate(parts.items()):
        points = _pass_curve(part)
        if len(points) > 1:
            x, y = zip(*points, strict=True)
            traces.append(curve(list(x), list(y), f"series:{place}", name))
    if not traces:
        return []
    caption = "Share of problems that at least one of k responses solves (unbiased estimate)."
    look: dict[str, Any] = {"x": "k", "legend": True, "share": True, "wide": True}
    look["layout"] = {"xaxis": {"type": "log", "dtick": 0.30102999566}}
    return [plot(f"pass-at-k {label}", "pass@k", caption, traces, **look)]


def _pass_curve(part: Mapping[str, Any]) -> list[tuple[float | None, float | None]]:
    """(k, pass@k) as far as they were written down."""
    held = part.get("pass_at_k")
    k, mean = (held.get(key) for key in ("k", "mean")) if isinstance(held, dict) else (None, None)
    if not isinstance(k, list) or not isinstance(mean, list) or len(k) != len(mean):
        return []
    return [(known(one), known(value)) for one, value in zip(k, mean, strict=True)]
