"""What a comparison leaves behind: tables, a page, everything as JSON, and pictures."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dare.report.blocks import Block, section
from dare.report.document import page
from dare.report.sections.comparison import compared, pictures
from dare.runs.files import write_json, write_whole
from dare.study.tables import about_intervals, runs_csv, summary_csv, tables_of

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_WIDTH = 1080
_AROUND = 125  # title, caption, legend and frame of a plot
_PATIENCE = 120.0


def write_comparison(
    figures: dict[str, Any], folder: Path, fields: Sequence[str] = ()
) -> tuple[list[Path], str | None]:
    """compare.md, .tex, .json and .html, summary.csv, runs.csv and PNGs; and why one is missing."""
    colours = {name: f"run:{place}" for place, name in enumerate(figures["methods"])}
    tables = tables_of(figures, fields)
    texts = {
        "compare.md": "\n".join(table.markdown() for table in tables),
        "compare.tex": "\n".join(table.latex() for table in tables),
        "summary.csv": summary_csv(figures),
        "runs.csv": runs_csv(figures),
        "compare.html": page(_content(figures, compared(figures, colours))),
    }
    for name, text in texts.items():
        write_whole(folder / name, text)
    write_json(folder / "compare.json", figures)
    written, reason = [*(folder / name for name in texts), folder / "compare.json"], None
    for name, plots in pictures(figures, colours).items():
        tall = [one["height"] + _AROUND for one in plots if one["wide"]]
        tall += [one["height"] + _AROUND for one in plots if not one["wide"]][::2]  # two a row
        shown = page(_content(figures, plots), picture=True)
        reason = screenshot(shown, sum(tall), folder / f"{name}.png")
        if reason is not None:
            break
        written.append(folder / f"{name}.png")
    return written, reason


def _content(figures: dict[str, Any], blocks: Sequence[Block]) -> dict[str, Any]:
    """What the page shows: these blocks alone."""
    intro = f"Bands and whiskers: {about_intervals(figures)}."
    part = section("comparison", "Methods at equal tokens and equal seconds", intro, blocks)
    title = ", ".join(figures["methods"])
    frame = {"runs": [], "unit": "seconds", "axes": {}, "written": round(time.time())}
    return {"title": title, **frame, "sections": [part]}


def screenshot(text: str, height: int, path: Path) -> str | None:
    """Write a page as a PNG; returns why not, or None."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        return f"no PNG: none of {', '.join(_BROWSERS)} is installed"
    with tempfile.TemporaryDirectory() as folder:
        shown, made = Path(folder) / "picture.html", Path(folder) / "picture.png"
        shown.write_text(text, encoding="utf-8")
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
            "--virtual-time-budget=10000",
            f"--window-size={_WIDTH},{height}",
            f"--screenshot={made}",
            shown.as_uri(),
        ]
        if os.geteuid() == 0:  # the browser's own sandbox refuses to run as root
            command.insert(1, "--no-sandbox")
        try:
            subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"no PNG: {browser} did not draw it ({type(error).__name__})"
        if not made.is_file():
            return f"no PNG: {browser} wrote no picture"
        shutil.copyfile(made, path)
    return None
