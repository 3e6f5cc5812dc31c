"""The report as one HTML file that needs nothing else: no network, no second file."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput
from dare.report.content import content
from dare.report.folder import read_run
from dare.report.found import find_runs
from dare.report.text import embedded, legible

_SCRIPTS = ("theme.js", "plots.js", "moves.js", "samples.js", "page.js", "live.js")


def write_report(words: Sequence[str], out: Path) -> dict[str, Any]:
    """Read the runs, write the file as a whole or not at all; returns what it shows."""
    shown = content([read_run(found) for found in find_runs(words)])
    text = page(shown)
    _write_whole(out, text)
    return shown


def _write_whole(out: Path, text: str) -> None:
    if not out.name:
        raise InvalidInput("--out", str(out), "is a folder; name a file in it")
    temporary = out.with_name(f".report-{os.getpid()}.tmp")  # short: the name itself may be long
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, out)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise InvalidInput("--out", str(out), f"cannot be written ({error.strerror})") from None


def default_file(words: Sequence[str]) -> Path:
    """report.html in the run's own folder; of several runs, runs.html in the folder of them all."""
    found = find_runs(words)
    if len(found) == 1:
        return found[0].folder / "report.html"
    if len(words) > 1:
        return Path("runs.html")
    folder = words[0] if Path(words[0]).is_dir() else words[0].partition("=")[2]
    return Path(folder) / "runs.html"


def page(shown: dict[str, Any], *, live: bool = False) -> str:
    """The document. A live one may ask the server it came from for news, and nobody else.

    Only the two scripts written here may run: the browser compares their hashes. What the runs
    wrote stands in the page as data and becomes text, never markup.
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
<html lang="en" data-live="{mark}">
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
