"""Benchmarks that `dare eval` left in or under the run folder, read with care."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dare.report.blocks import Block, Trace, percent, plot, short, table
from dare.report.lines import number
from dare.report.text import legible

_K = (1, 4, 8, 16, 32, 64)


def benchmark_blocks(evaluations: Mapping[str, Any]) -> list[Block]:
    """A table and, where problems were answered several times, pass@k of each evaluation."""
    blocks: list[Block] = []
    for label, held in evaluations.items():
        listed = held.get("benchmarks") if isinstance(held, dict) else None
        parts = listed if isinstance(listed, dict) else {}
        known = {legible(str(n), 60): p for n, p in parts.items() if isinstance(p, dict)}
        if known:
            blocks.append(_table(label, held, known))
            blocks += _pass_at_k(label, known)
    return blocks


def _table(label: str, held: Mapping[str, Any], parts: Mapping[str, Any]) -> Block:
    ks = [k for k in _K if k > 1 and any(_pass(part, k) is not None for part in parts.values())]
    head = ["benchmark", "accuracy", "interval", "problems", "tokens a response", "cut off"]
    rows = []
    for name, part in parts.items():
        low, high = _number(part, "low"), _number(part, "high")
        ends = "-" if low is None or high is None else f"{100 * low:.1f} - {100 * high:.1f} %"
        tokens = _number(part, "tokens")
        rows.append(
            [
                name,
                percent(_number(part, "accuracy")),
                ends,
                short(_number(part, "problems")),
                "-" if tokens is None else f"{tokens:,.1f}",
                percent(_number(part, "truncated")),
                *(percent(_pass(part, k)) for k in ks),
            ]
        )
    mean = _number(held, "mean_accuracy")
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
            x, y = [_plain(v) for v in k], [_plain(v) for v in mean]
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
    return _plain(value)


def _number(part: Mapping[str, Any], key: str) -> float | None:
    return _plain(part.get(key))


def _plain(value: Any) -> float | None:
    found = number(value)
    return found if math.isfinite(found) else None
