"""A page of figures: one HTML file that needs no network to be looked at."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

Panels = Sequence[tuple[str, Any]]
"""Figures that belong together, each with its title."""

COLOURS = (
    "#868c96",
    "#3f7fcb",
    "#c4791b",
    "#3a8f5c",
    "#c2567f",
    "#7d6ac4",
    "#2591a0",
    "#a3772f",
    "#cf6247",
    "#688a3a",
)
"""Of runs and methods: each stands out from a white page and from a dark one."""

WHISKERS = {"thickness": 1.2, "width": 3, "color": "#7d8794"}
"""Looks of intervals, on light and dark pages."""

_STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --back: #ffffff; --soft: #5b6573; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ee; --back: #14181f; --soft: #9aa5b4; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.note { color: var(--soft); } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .8rem; text-align: right; } td:first-child { text-align: left; }
.panels { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); }
.panels > div { min-width: 0; } h3 { font-size: .95rem; font-weight: 600; margin: .4rem 0 0; }
tr + tr { border-top: 1px solid color-mix(in srgb, var(--soft) 30%, transparent); }
"""


def html_page(
    title: str, heading: str, note: str, table: str, parts: Sequence[tuple[str, Panels]]
) -> str:
    """The whole page: heading, note, a table that is HTML already, and titled plotly figures.

    The panels of a part stand side by side where there is room, else one below the other.
    """
    blocks, drawn = [], 0
    for name, panels in parts:
        held = []
        for label, figure in panels:
            # plotly's code goes in once, with the first figure
            block = dressed(figure).to_html(
                full_html=False,
                include_plotlyjs=not drawn,
                config={"displayModeBar": False, "responsive": True},
            )
            drawn += 1
            held.append(f"<div>{f'<h3>{html.escape(label)}</h3>' if label else ''}{block}</div>")
        blocks.append(f'<h2>{html.escape(name)}</h2>\n<div class="panels">{"".join(held)}</div>')
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{html.escape(heading)}</h1>
<p class="note">{html.escape(note)}</p>
{table}
{"".join(blocks)}
<script>addEventListener("load", () => dispatchEvent(new Event("resize")));</script>
</body></html>
"""


def beside(panels: Panels) -> Any:
    """The panels as one figure, for a picture."""
    from plotly.subplots import make_subplots

    if len(panels) == 1:
        return panels[0][1]
    made = make_subplots(cols=len(panels), subplot_titles=[label for label, _ in panels])
    for column, (_, figure) in enumerate(panels, start=1):
        for trace in figure.data:
            made.add_trace(trace, row=1, col=column)
            if column > 1:
                made.data[-1].showlegend = False
        for change, axis in ((made.update_xaxes, "xaxis"), (made.update_yaxes, "yaxis")):
            change(**figure.layout[axis].to_plotly_json(), row=1, col=column)
    return made.update_layout(height=panels[0][1].layout.height)


def dressed(figure: Any) -> Any:
    """The figure in colours that read on light and dark pages."""
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#7d8794"},
        margin={"l": 50, "r": 20, "t": 30, "b": 45},
        legend={"orientation": "h", "y": -0.25, "x": 1.0, "xanchor": "right"},
    )
    grid = {"gridcolor": "rgba(125,135,148,.25)", "zeroline": False}
    return figure.update_xaxes(**grid).update_yaxes(**grid)
