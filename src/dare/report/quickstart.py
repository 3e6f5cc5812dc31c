"""The quickstart's report: one HTML file that needs no network to be looked at."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from dare.evaluation.intervals import wilson
from dare.report.page import COLOURS as ALL
from dare.report.page import WHISKERS, Panels, html_page
from dare.study.quickstart import rows

COLOURS = dict(zip(("grpo", "dare", "paper"), ALL, strict=False))
TIERS = {"easy": "#79b791", "medium": "#edc55a", "hard": "#d2694f"}


def write_report(
    runs: dict[str, dict[str, Any]], figures: dict[str, Any], path: Path, seeds: int = 1
) -> None:
    """Curves, levels, tiers and calibration of the runs, and the table."""
    parts = [
        ("Accuracy on held-out problems", learning_curves(runs)),
        ("By level of the problem, at the end", levels(figures)),
    ]
    if "dare" in runs:
        parts += [
            ("What DARE drew", tier_mix(runs["dare"])),
            (
                "Is the difficulty estimate right?",
                [("", calibration(runs["dare"]["estimation"]))],
            ),
        ]
    names = " and ".join(name.upper() for name in runs)
    note = (
        f"The policy and the problems that ship with DARE, {seeds} seed each: a demonstration, "
        "not a measurement. docs/quickstart.md says what to make of it."
    )
    heading = f"{names} from the same start, with the same generated tokens"
    page = html_page("DARE quickstart", heading, note, _table(figures), parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def learning_curves(runs: dict[str, dict[str, Any]]) -> Panels:
    """Accuracy with its 95 % interval and response length, over generated tokens."""
    panels = []
    for key, title in (("accuracy", "success rate (greedy)"), ("tokens", "tokens a response")):
        figure = go.Figure()
        for name, run in runs.items():
            figure.add_scatter(
                x=[line["generated_tokens_total"] for line in run["eval"]],
                y=[line[key] for line in run["eval"]],
                error_y=_whiskers(run["eval"]) if key == "accuracy" else None,
                name=name,
                legendgroup=name,
                mode="lines+markers",
                line={"color": COLOURS.get(name)},
                customdata=[line["step"] for line in run["eval"]],
                hovertemplate="after step %{customdata}: %{y:.3f}",
            )
        figure.update_xaxes(title="generated tokens").update_yaxes(rangemode="tozero")
        panels.append((title, figure.update_layout(height=380)))
    return panels


def _whiskers(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """95 % intervals of accuracies."""
    up, down = [], []
    for part in parts:
        low, high = wilson(part["accuracy"], part["responses"] - part["unscored"])
        up.append(high - part["accuracy"])
        down.append(part["accuracy"] - low)
    return {"array": up, "arrayminus": down, **WHISKERS}


def levels(figures: dict[str, Any]) -> Panels:
    """Accuracy and tokens by level, a bar a preset."""
    panels = []
    for key, title in (("accuracy", "success rate by level"), ("tokens", "tokens by level")):
        figure = go.Figure()
        for name, preset in figures["presets"].items():
            order = sorted(preset["by_level"], key=lambda level: (len(level), level))
            parts = [preset["by_level"][level] for level in order]
            figure.add_bar(
                x=order,
                y=[part[key] for part in parts],
                error_y=_whiskers(parts) if key == "accuracy" else None,
                name=name,
                legendgroup=name,
                marker={"color": COLOURS.get(name)},
            )
        panels.append((title, figure.update_xaxes(title="level").update_layout(height=360)))
    return panels


def tier_mix(run: dict[str, Any]) -> Panels:
    """The share of groups that can teach anything, and where tiers are on, what was drawn."""
    steps = [line["step"] + 1 for line in run["metrics"]]
    taught, drawn = go.Figure(), go.Figure()
    taught.add_scatter(
        x=steps,
        y=[line.get("varied_groups") for line in run["metrics"]],
        name="mixed groups",
        line={"color": COLOURS["dare"]},
    )
    taught.update_yaxes(range=[0, 1])
    for tier, colour in TIERS.items():
        drawn.add_scatter(
            x=steps,
            y=[line[f"tier_{tier}"] for line in run["metrics"]],
            name=tier,
            stackgroup="tiers",
            line={"color": colour, "width": 0.5},
        )
    panels = [("share of groups with mixed rewards", taught)]
    if any(line["tier_easy"] or line["tier_hard"] for line in run["metrics"]):
        panels.append(("prompts drawn, by tier", drawn))
    return [
        (name, one.update_xaxes(title="step").update_layout(height=340)) for name, one in panels
    ]


def calibration(estimation: dict[str, Any]) -> go.Figure:
    """Estimated against true failure rate of training prompts at the end of the run."""
    figure = go.Figure()
    figure.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", name="perfect", line={"color": "#7d8794", "dash": "dot"}
    )
    figure.add_scatter(
        x=estimation["estimate"],
        y=estimation["truth"],
        mode="markers",
        name=f"{estimation['prompts']} prompts, {estimation['rollouts']} rollouts each",
        marker={"color": COLOURS["dare"], "opacity": 0.8},
    )
    figure.update_xaxes(title="estimated failure rate", range=[-0.03, 1.03])
    figure.update_yaxes(title="true failure rate", range=[-0.03, 1.03])
    return figure.update_layout(height=420)


def _table(figures: dict[str, Any]) -> str:
    presets = figures["presets"]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in presets)
    lines = [f"<tr><td></td>{head}</tr>"]
    for title, key, form in rows(figures):
        values = [presets[name][key] for name in presets]
        cells = "".join(f"<td>{'-' if v is None else form.format(v)}</td>" for v in values)
        lines.append(f"<tr><td>{html.escape(title)}</td>{cells}</tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'
