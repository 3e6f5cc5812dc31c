"""The quickstart's report: one HTML file that needs no network to be looked at."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dare.report.page import html_page
from dare.study.quickstart import rows

COLOURS = {"grpo": "#8a8f98", "dare": "#1f5fa8", "paper": "#c77d1e"}
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
            ("Is the difficulty estimate right?", calibration(runs["dare"]["estimation"])),
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


def learning_curves(runs: dict[str, dict[str, Any]]) -> go.Figure:
    """Accuracy and response length over generated tokens."""
    titles = ["success rate (greedy)", "tokens a response"]
    figure = make_subplots(cols=2, subplot_titles=titles)
    for name, run in runs.items():
        tokens = [line["generated_tokens_total"] for line in run["eval"]]
        for column, key in ((1, "accuracy"), (2, "tokens")):
            figure.add_scatter(
                x=tokens,
                y=[line[key] for line in run["eval"]],
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                mode="lines+markers",
                line={"color": COLOURS.get(name)},
                customdata=[line["step"] for line in run["eval"]],
                hovertemplate="step %{customdata}: %{y:.3f}",
                row=1,
                col=column,
            )
    return figure.update_xaxes(title="generated tokens").update_layout(height=380)


def levels(figures: dict[str, Any]) -> go.Figure:
    """Accuracy and tokens by level, a bar a preset."""
    titles = ["success rate by level", "tokens by level"]
    figure = make_subplots(cols=2, subplot_titles=titles)
    for name, preset in figures["presets"].items():
        order = sorted(preset["by_level"], key=lambda level: (len(level), level))
        for column, key in ((1, "accuracy"), (2, "tokens")):
            figure.add_bar(
                x=order,
                y=[preset["by_level"][level][key] for level in order],
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                marker={"color": COLOURS.get(name)},
                row=1,
                col=column,
            )
    return figure.update_xaxes(title="level").update_layout(height=360)


def tier_mix(run: dict[str, Any]) -> go.Figure:
    """Prompts of each tier by step, beside the share of groups that can teach anything."""
    titles = ["prompts drawn, by tier", "share of groups with mixed rewards"]
    figure = make_subplots(cols=2, subplot_titles=titles)
    steps = [line["step"] for line in run["metrics"]]
    for tier, colour in TIERS.items():
        figure.add_scatter(
            x=steps,
            y=[line[f"tier_{tier}"] for line in run["metrics"]],
            name=tier,
            stackgroup="tiers",
            line={"color": colour, "width": 0.5},
            row=1,
            col=1,
        )
    figure.add_scatter(
        x=steps,
        y=[line.get("varied_groups") for line in run["metrics"]],
        name="mixed groups",
        line={"color": COLOURS["dare"]},
        row=1,
        col=2,
    )
    return figure.update_xaxes(title="step").update_layout(height=340)


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
        marker={"color": COLOURS["dare"], "opacity": 0.55},
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
