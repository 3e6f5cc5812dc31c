"""The report as one HTML file that needs nothing else: no network, no second file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import time
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput
from dare.report.blocks import Axes, View
from dare.report.sections.comparison import colours_of, comparison, method_names
from dare.report.sections.cost import cost
from dare.report.sections.curves import curves
from dare.report.sections.estimator import estimator
from dare.report.sections.evaluation import evaluation
from dare.report.sections.landscape import landscape
from dare.report.sections.levels import levels
from dare.report.sections.overview import overview, settings
from dare.report.sections.rollouts import rollouts
from dare.runs.files import check_out, write_whole
from dare.runs.found import find_runs, named
from dare.runs.reader import RunData, read_run
from dare.text import legible


def content(runs: Sequence[RunData]) -> dict[str, Any]:
    """Sections in the order of the page, and the axes they share."""
    axes = Axes(runs)
    views = [View(run, place, axes) for place, run in enumerate(runs)]
    methods = method_names(runs)
    colours = colours_of(methods)
    several = len(runs) > 1
    sections = [
        overview(runs),
        *([comparison(runs, methods)] if several else []),
        curves(views, colours),
        *(of(views) for of in (landscape, estimator, levels, cost, evaluation, rollouts)),
        settings(runs),
    ]
    return {
        "title": f"{runs[0].name}" if not several else f"{len(runs)} runs",
        "written": round(time.time()),
        "runs": [
            {"name": run.name, "method": method, "seed": run.seed, "colour": colour}
            for run, method, colour in zip(runs, methods, colours, strict=True)
        ],
        "unit": axes.unit,
        "axes": axes.to_dict(),
        "sections": sections,
    }


_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}
_SCRIPTS = ("theme.js", "plots.js", "moves.js", "samples.js", "page.js", "live.js")


def write_report(words: Sequence[str], out: Path) -> dict[str, Any]:
    """Read the runs, write the file as a whole or not at all; returns what it shows."""
    check_out(out, ".html", ".htm")
    shown = content([read_run(found) for found in find_runs(words)])
    try:
        write_whole(out, page(shown))
    except OSError as error:
        raise InvalidInput("--out", str(out), f"cannot be written ({error.strerror})") from None
    return shown


def default_file(words: Sequence[str]) -> Path:
    """report.html in the run's own folder; of several runs, runs.html in the folder of them all."""
    found = find_runs(words)
    if len(found) == 1:
        return found[0].folder / "report.html"
    if len(words) > 1:
        return Path("runs.html")
    return named(words[0])[1] / "runs.html"


def page(shown: dict[str, Any], *, live: bool = False, picture: bool = False) -> str:
    """The document. A live one may ask the server it came from for news, and nobody else.

    A picture has the plots alone. Only the two scripts written here may run: the browser compares
    their hashes. What the runs wrote stands in the page as data and becomes text, never markup.
    """
    plotly, own = _plotly(), _own_script()
    asks, mark = ("'self'", "yes") if live else ("'none'", "no")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(plotly)} {_hash(own)}",
            "style-src 'unsafe-inline'",  # plotly sets styles as it draws
            "img-src data: blob:",
            f"connect-src {asks}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    title = html.escape(legible(str(shown["title"]), 120))
    return f"""<!doctype html>
<html lang="en" data-live="{mark}"{" data-picture" if picture else ""}>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} - DARE report</title>
<style>{_asset("style.css")}</style>
</head>
<body>
<div id="page"><p id="waiting">Drawing the report ...</p></div>
<noscript><p>This report draws its plots with JavaScript, from data inside this file.</p></noscript>
<script type="application/json" id="content">{embedded(shown)}</script>
<script type="text/plain" id="plotly">{plotly}</script>
<script>{own}</script>
</body>
</html>
"""


def embedded(value: Any) -> str:
    """JSON that stands safely inside a script element: pure ASCII without <, > and &."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


@cache
def _asset(name: str) -> str:
    return (files("dare.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _own_script() -> str:
    parts = "\n".join(_asset(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\nstart();\n}})();'


@cache
def _plotly() -> str:
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


@cache
def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
