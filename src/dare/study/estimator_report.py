"""The figures of an estimator study as tables, for a terminal and as Markdown."""

from __future__ import annotations

from typing import Any

Table = tuple[str, list[str], list[list[str]]]
"""Title, headings and rows."""


def tables(figures: dict[str, Any]) -> list[Table]:
    """Every table, lowest error first."""
    found = [_errors(figures), _near_half(figures), _cost(figures)]
    if figures["ess_sweep"] is not None:
        found.append(_sweep(figures["ess_sweep"]))
    return [*found, _calibration(figures)]


def about(figures: dict[str, Any]) -> str:
    """What was run and measured, in two sentences."""
    seeds, at = len(figures["seeds"]), ", ".join(str(step) for step in figures["at"])
    interval = "over seeds" if seeds > 1 else "over prompts, of this run alone"
    return (
        f"Policy {figures['model']}, preset {figures['preset']}, {seeds} "
        f"{'run' if seeds == 1 else 'runs'}; truth after steps {at} from {figures['rollouts']} "
        f"rollouts of each of {figures['prompts']} prompts ({figures['seen']} estimates of prompts "
        f"seen in training, {figures['unseen']} of others). "
        f"Intervals: 95 % {interval}, by Student's t."
    )


def markdown(figures: dict[str, Any]) -> str:
    """A page with all tables."""
    parts = ["# Difficulty estimators against the truth", about(figures)]
    for title, headings, rows in tables(figures):
        lines = [f"## {title}", ""]
        for cells in (headings, ["---"] * len(headings), *rows):
            lines.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def show(figures: dict[str, Any]) -> None:
    """The tables on the terminal, less the calibration, which is long."""
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    console.print(about(figures))
    for title, headings, rows in tables(figures)[:-1]:
        table = RichTable(*headings, box=None, title=title, title_justify="left")
        for cells in rows:
            table.add_row(*cells)
        console.print()
        console.print(table)


def _ordered(figures: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return sorted(figures["estimators"].items(), key=lambda item: float(item[1]["mae"]))


def _errors(figures: dict[str, Any]) -> Table:
    steps = [str(step) for step in figures["at"]]
    headings = ["estimator", "MAE", "95 %", "MSE", "95 %", "seen MAE", "MSE", "unseen MAE", "MSE"]
    lines = {
        f"{name} (intrinsic)" if name == "current-fr" else name: line
        for name, line in figures["estimators"].items()
    }
    lines["best constant (hindsight)"] = figures["constant"]
    rows = []
    for label, line in sorted(lines.items(), key=lambda item: float(item[1]["mae"])):
        cells = []
        for key, digits in (("mae", 3), ("mse", 4)):
            low, high = line.get(f"{key}_low"), line.get(f"{key}_high")
            span = "-" if low is None else f"{low:.{digits}f} - {high:.{digits}f}"
            cells += [_number(line[key], digits), span]
        for part in ("seen", "unseen"):
            cells += [_number(line[part]["mae"]), _number(line[part]["mse"], 4)]
        cells += [_number(line["by_step"].get(step, {}).get("mae")) for step in steps]
        rows.append([label, *cells])
    group = figures["intrinsic"]["rollouts"]
    return (
        f"Error of the estimated failure rate ({group} fresh rollouts: intrinsic; best constant: "
        "the median of the true rates for MAE, their mean for MSE, for each figure its own)",
        [*headings, *(f"MAE @{step}" for step in steps)],
        rows,
    )


def _near_half(figures: dict[str, Any]) -> Table:
    headings = ["estimator", "prompts", "true rate", "95 %", "distance from 0.5", "in 0.2 - 0.8"]
    rows = []
    for name, line in _ordered(figures):
        near = line["near_half"]
        span = "-" if near["low"] is None else f"{near['low']:.3f} - {near['high']:.3f}"
        values = [_number(near["distance"]), _number(near["medium"], 2)]
        rows.append([name, str(near["prompts"]), _number(near["realised"]), span, *values])
    return "Prompts predicted at 0.4 to 0.6", headings, rows


def _cost(figures: dict[str, Any]) -> Table:
    headings = ["estimator", "generated", "scored", "of these once", "seconds", "an estimate"]
    rows = []
    for name, line in _ordered(figures):
        cost = line["cost"]
        tokens = [f"{cost[key]:,}" for key in ("generated", "scored", "once")]
        rows.append([name, *tokens, f"{cost['seconds']:.1f}", f"{cost['tokens_per_estimate']:.1f}"])
    return "Tokens beside the rollouts that are trained on", headings, rows


def _sweep(lines: list[dict[str, Any]]) -> Table:
    headings = ["ESS >=", "accepted", "of those with rollouts", "MAE", "MAE of the accepted"]
    rows = [
        [
            f"{line['tau']:g}",
            _number(line["coverage"], 2),
            _number(line["held_coverage"], 2),
            _number(line["mae"]),
            _number(line["mae_accepted"]),
        ]
        for line in lines
    ]
    return "ESS threshold of the paper's estimator", headings, rows


def _calibration(figures: dict[str, Any]) -> Table:
    headings = ["estimator", "predicted", "prompts", "mean prediction", "true rate", "95 %"]
    rows = []
    for name, line in _ordered(figures):
        for part in line["calibration"]:
            span = f"{part['low']:.3f} - {part['high']:.3f}"
            values = [_number(part["predicted"]), _number(part["realised"]), span]
            bounds = f"{part['from']:.1f} - {part['to']:.1f}"
            rows.append([name, bounds, str(part["prompts"]), *values])
    return "Calibration", headings, rows


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
