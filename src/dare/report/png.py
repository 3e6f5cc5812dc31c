"""A figure as PNG, drawn by the browser that is there; no browser, no PNG."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_WIDTH = 1080
_PATIENCE = 120.0


def screenshot(figure: Any, path: Path) -> str | None:
    """Write the figure; returns why not, or None."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        return f"no PNG: none of {', '.join(_BROWSERS)} is installed"
    height = int(figure.layout.height or 450)
    with tempfile.TemporaryDirectory() as folder:
        page, made = Path(folder) / "figure.html", Path(folder) / "figure.png"
        figure.update_layout(width=_WIDTH)
        body = figure.to_html(full_html=False, include_plotlyjs=True, config={"staticPlot": True})
        style = "<style>body{margin:0;background:#fff}</style>"
        text = f"<!doctype html><meta charset='utf-8'>{style}{body}"
        page.write_text(text, encoding="utf-8")
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
            "--virtual-time-budget=10000",
            f"--window-size={_WIDTH},{height}",
            f"--screenshot={made}",
            page.as_uri(),
        ]
        if os.geteuid() == 0:  # the browser's own sandbox refuses to run as root
            command.insert(1, "--no-sandbox")
        try:
            subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"no PNG: {browser} did not draw it ({type(error).__name__})"
        if not made.is_file():
            return f"no PNG: {browser} wrote no picture"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, path)
    return None
