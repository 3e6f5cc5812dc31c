"""A page of figures: one HTML file that needs no network to be looked at."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --back: #ffffff; --soft: #5b6573; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ee; --back: #14181f; --soft: #9aa5b4; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.note { color: var(--soft); } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .8rem; text-align: right; } td:first-child { text-align: left; }
tr + tr { border-top: 1px solid color-mix(in srgb, var(--soft) 30%, transparent); }
"""


def html_page(
    title: str, heading: str, note: str, table: str, parts: Sequence[tuple[str, Any]]
) -> str:
    """The whole page: heading, note, a table that is HTML already, and titled plotly figures."""
    blocks = []
    for place, (name, figure) in enumerate(parts):
        # plotly's code goes in once, with the first figure
        block = dressed(figure).to_html(
            full_html=False, include_plotlyjs=place == 0, config={"displayModeBar": False}
        )
        blocks.append(f"<h2>{html.escape(name)}</h2>\n{block}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{html.escape(heading)}</h1>
<p class="note">{html.escape(note)}</p>
{table}
{"".join(blocks)}
</body></html>
"""


def dressed(figure: Any) -> Any:
    """The figure in colours that read on light and dark pages."""
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#7d8794"},
        margin={"l": 50, "r": 20, "t": 40, "b": 45},
        legend={"orientation": "h", "y": -0.22, "x": 1.0, "xanchor": "right"},
    )
    grid = {"gridcolor": "rgba(125,135,148,.25)", "zeroline": False}
    return figure.update_xaxes(**grid).update_yaxes(**grid)
