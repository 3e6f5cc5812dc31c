"""Figures of a comparison: curves over tokens and seconds, by level, and what accuracy costs."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.colors import hex_to_rgb

from dare.report.page import COLOURS, WHISKERS, Panels, beside, dressed, html_page
from dare.report.png import screenshot
from dare.study.tables import Table, about_intervals, level_table, summary_tables


def compare_figures(figures: dict[str, Any]) -> list[tuple[str, str, Panels]]:
    """File name, title and figures of each."""
    title = "Accuracy over seconds of training"
    by_seconds = ("seconds", title, [("", curves(figures, "seconds"))])
    return [
        ("curves", "Accuracy over generated tokens", [("", curves(figures))]),
        *([by_seconds] if figures["grid_seconds"] is not None else []),
        ("levels", "By level of the problem, at the end", levels(figures)),
        ("final", "Final accuracy and speed", final(figures)),
    ]


def write_figures(figures: dict[str, Any], folder: Path) -> tuple[list[Path], str | None]:
    """compare.html and a PNG a figure; returns what was written and why a PNG is missing."""
    parts = compare_figures(figures)
    tables = [*summary_tables(figures), level_table(figures, "accuracy")]
    page = html_page(
        "DARE comparison",
        "Methods at equal generated tokens and equal seconds",
        f"Bands and whiskers: {about_intervals(figures)}.",
        "\n".join(html_table(table) for table in tables),
        [(title, panels) for _, title, panels in parts],
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.html").write_text(page, encoding="utf-8")
    written, reason = [folder / "compare.html"], None
    for name, _, panels in parts:
        figure = dressed(beside(panels)).update_layout(paper_bgcolor="white", plot_bgcolor="white")
        reason = screenshot(figure, folder / f"{name}.png")
        if reason is not None:
            break
        written.append(folder / f"{name}.png")
    return written, reason


def curves(figures: dict[str, Any], axis: str = "tokens") -> go.Figure:
    """Mean accuracy of each method with its interval, over generated tokens or over seconds."""
    figure = go.Figure()
    x = figures[f"grid_{axis}"]
    looks = zip(figures["methods"].items(), _cycle(figures), _dashes(figures), strict=True)
    for (name, method), colour, dash in looks:
        mean, low, high = zip(*method[f"curve_{axis}"], strict=True)
        red, green, blue = hex_to_rgb(colour)
        figure.add_scatter(
            x=[*x, *x[::-1]],
            y=[*high, *low[::-1]],
            fill="toself",
            fillcolor=f"rgba({red},{green},{blue},.15)",
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            legendgroup=name,
        )
        look = {"color": colour, "dash": dash}
        figure.add_scatter(x=x, y=mean, name=name, legendgroup=name, line=look)
    figure.update_yaxes(title="accuracy", automargin=True)
    title = "generated tokens" if axis == "tokens" else "seconds of training, without evaluation"
    return figure.update_xaxes(title=title).update_layout(height=460)


def levels(figures: dict[str, Any]) -> Panels:
    """Accuracy and tokens by level, a bar a method."""
    panels = []
    for key, title in (("accuracy", "accuracy"), ("tokens", "tokens a response")):
        figure = go.Figure()
        for (name, method), colour in zip(figures["methods"].items(), _cycle(figures), strict=True):
            parts = {level: part[key] for level, part in method["by_level"].items()}
            figure.add_bar(
                x=list(parts),
                y=[part[0] for part in parts.values()],
                error_y=_whiskers(list(parts.values())),
                name=name,
                legendgroup=name,
                marker={"color": colour},
            )
        panels.append((title, figure.update_xaxes(title="level").update_layout(height=400)))
    return panels


def final(figures: dict[str, Any]) -> Panels:
    """Final accuracy, AUC, and how many times fewer tokens and seconds each method took."""
    names = list(figures["methods"])
    keys = {"accuracy": "final accuracy", "auc": "AUC", "token_speed_up": "times fewer tokens"}
    if any(figures["methods"][name]["second_speed_up"][0] is not None for name in names):
        keys["second_speed_up"] = "times fewer seconds"
    panels = []
    for key, title in keys.items():
        values = [figures["methods"][name][key] for name in names]
        figure = go.Figure()
        figure.add_scatter(
            x=[value[0] for value in values],
            y=names,
            error_x=_whiskers(values),
            mode="markers",
            marker={"color": _cycle(figures), "size": 9},
            showlegend=False,
        )
        figure.update_yaxes(autorange="reversed", automargin=True)
        panels.append((title, figure.update_layout(height=160 + 28 * len(names))))
    return panels


def html_table(table: Table) -> str:
    """A table of the page."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.head)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    title = html.escape(table.title)
    return (
        f'<p class="note">{title}</p><div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
    )


def _whiskers(values: list[list[float | None]]) -> dict[str, Any]:
    up, down = [], []
    for mean, low, high in values:
        up.append(0.0 if mean is None or high is None else high - mean)
        down.append(0.0 if mean is None or low is None else mean - low)
    return {"array": up, "arrayminus": down, **WHISKERS}


def _cycle(figures: dict[str, Any]) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(len(figures["methods"]))]


def _dashes(figures: dict[str, Any]) -> list[str]:
    """Solid as long as colours last, then broken: two methods never look the same."""
    rounds = ("solid", "dash", "dot", "dashdot")
    return [rounds[place // len(COLOURS) % 4] for place in range(len(figures["methods"]))]
