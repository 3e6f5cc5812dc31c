"""`dare quickstart`: see DARE beside GRPO in a few minutes."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def quickstart(
    folder: Annotated[
        str, typer.Option(help="Where the runs and the report go.")
    ] = "runs/quickstart",
    steps: Annotated[int, typer.Option(min=1, help="Steps of the GRPO run.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of both runs.")] = 42,
) -> None:
    """Train GRPO and DARE from the same start with the same number of generated tokens.

    Uses the policy and the problems that ship with the package. Prints a table and writes
    report.html with the curves.
    """
    import os
    from pathlib import Path

    # Read when NumPy is first imported, below: the matrices are tiny, threads wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from transformers.utils import logging

    from dare.report.document import write_report
    from dare.study.quickstart import compare, run_quickstart

    logging.disable_progress_bar()
    runs = run_quickstart(Path(folder), seed=seed, options=["--max-steps", str(steps)])
    show(compare(runs))
    report = Path(folder) / "report.html"
    write_report([f"{name}={run.folder}" for name, run in runs.items()], report)
    typer.echo(f"wrote {report}")


def _rows(target: float) -> list[tuple[str, str, str]]:
    """Title, key and format of each line of the table."""
    return [
        ("accuracy at the start", "start_accuracy", "{:.3f}"),
        ("accuracy at the end", "accuracy", "{:.3f}"),
        ("tokens a response", "tokens_per_response", "{:.1f}"),
        ("steps", "steps", "{}"),
        ("tokens generated", "generated_tokens", "{:,.0f}"),
        (f"steps to accuracy {target:.3f}", "steps_to_target", "{}"),
        (f"tokens to accuracy {target:.3f}", "tokens_to_target", "{:,.0f}"),
        ("seconds of training", "seconds", "{:.0f}"),
        (f"seconds to accuracy {target:.3f}", "seconds_to_target", "{:.0f}"),
        ("error of the difficulty estimate", "estimation_mae", "{:.3f}"),
        ("error of 8 fresh rollouts", "fresh_mae", "{:.3f}"),
    ]


def show(figures: dict[str, Any]) -> None:
    """The table, overall and by level."""
    from rich.console import Console
    from rich.table import Table

    from dare.text import natural

    presets = figures["presets"]
    table = Table("", *presets, box=None, title="same start, same generated tokens")

    for title, key, form in _rows(figures["target"]):
        values = [presets[name][key] for name in presets]
        table.add_row(title, *("-" if v is None else form.format(v) for v in values))
    levels = sorted({level for p in presets.values() for level in p["by_level"]}, key=natural)
    for key, title in (("accuracy", "accuracy"), ("tokens", "tokens")):
        for level in levels:
            found = [p["by_level"].get(level, {}).get(key) for p in presets.values()]
            form = "{:.3f}" if key == "accuracy" else "{:.1f}"
            cells = ["-" if value is None else form.format(value) for value in found]
            table.add_row(f"{title}, level {level}", *cells)
    Console().print(table)
