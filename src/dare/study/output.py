"""What a comparison leaves behind: tables, figures, and everything as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dare.study.tables import Table, grid_table, level_table, runs_csv, summary_csv, summary_tables


def tables_of(figures: dict[str, Any], fields: Sequence[str] = ()) -> list[Table]:
    """The summary, the grid of a sweep over two fields, and both tables by level if it has any."""
    two = len(fields) == 2
    levels = [level_table(figures, key) for key in ("accuracy", "tokens")]
    return [
        *(grid_table(figures, fields, key) for key in ("accuracy", "auc") if two),
        *summary_tables(figures),
        *(table for table in levels if len(table.head) > 2),
    ]


def write_comparison(
    figures: dict[str, Any], folder: Path, fields: Sequence[str] = ()
) -> tuple[list[Path], str | None]:
    """compare.md, .tex, .json and .html, summary.csv, runs.csv and PNGs; and why one is missing."""
    from dare.report.compare import write_figures

    folder.mkdir(parents=True, exist_ok=True)
    tables = tables_of(figures, fields)
    texts = {
        "compare.md": "\n".join(table.markdown() for table in tables),
        "compare.tex": "\n".join(table.latex() for table in tables),
        "summary.csv": summary_csv(figures),
        "runs.csv": runs_csv(figures),
        "compare.json": json.dumps(figures, indent=1) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    pictures, reason = write_figures(figures, folder)
    return [*(folder / name for name in texts), *pictures], reason
