"""The figures of a fit on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def show(about: dict[str, Any]) -> None:
    """Errors on held-out prompts beside simple predictions, and the calibration of the head."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    def span(value: float | None, error: float | None) -> str:
        return "-" if value is None else f"{value:.2f} ± {error:.2f}"

    console = Console(highlight=False)
    console.print(
        f"{about['rows']} rates of {about['prompts']} prompts and {len(about['policies'])} "
        f"policies; held out: {about['held_out_rows']} rates, mean {about['held_out_rate']:.3f}; "
        f"kept the parameters of step {about['kept_step']}"
    )
    names = ("bce", "mae", "pearson", "calibration_error")
    titles = ("BCE", "MAE", "Pearson", "ECE", "slope", "shift")
    table = Table("held-out prompts", *titles, box=None)
    for name, line in sorted(about["errors"].items(), key=lambda item: float(item[1]["bce"])):
        moves = (span(line[key], line[f"{key}_error"]) for key in ("slope", "shift"))
        table.add_row(name, *(number(line[key]) for key in names), *moves)
    console.print(table)
    console.print(
        "attention alone: before temperature and bias; recalibrated: after the best slope and shift"
        " of the other half of the rows; ECE: mean gap between predicted and observed over bins\n"
    )
    bins = Table("predicted success", "rates", "predicted", "observed", "95 %", box=None)
    for line in about["calibration"]:
        bins.add_row(
            f"{line['from']:.1f} - {line['to']:.1f}",
            str(line["prompts"]),
            number(line["predicted"]),
            number(line["realised"]),
            f"{line['low']:.3f} - {line['high']:.3f}",
        )
    console.print(bins)
