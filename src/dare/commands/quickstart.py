"""`dare quickstart`: see DARE beside GRPO in a few minutes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dare.commands.options import quiet
from dare.text import natural


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
    # Read when NumPy is first imported, below: the matrices are tiny, threads wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from dare.report.document import write_report
    from dare.study.quickstart import compare, run_quickstart

    quiet()
    runs = run_quickstart(Path(folder), seed=seed, options=["--max-steps", str(steps)])
    show(compare(runs))
    report = Path(folder) / "report.html"
    write_report([f"{name}={run.folder}" for name, run in runs.items()], report)
    typer.echo(f"wrote {report}")


def show(figures: dict[str, Any]) -> None:
    """The table, overall and by level."""
    presets, goal = figures["presets"], f"to accuracy {figures['target']:.3f}"
    levels = sorted({level for p in presets.values() for level in p["by_level"]}, key=natural)
    table = Table("", *presets, box=None, title="same start, same generated tokens")

    def add(title: str, values: list[Any], form: str) -> None:
        table.add_row(title, *("-" if value is None else f"{value:{form}}" for value in values))

    for title, key, form in (
        ("accuracy at the start", "start_accuracy", ".3f"),
        ("accuracy at the end", "accuracy", ".3f"),
        ("tokens a response", "tokens_per_response", ".1f"),
        ("steps", "steps", ""),
        ("tokens generated", "generated_tokens", ",.0f"),
        (f"steps {goal}", "steps_to_target", ""),
        (f"tokens {goal}", "tokens_to_target", ",.0f"),
        ("seconds of training", "seconds", ".0f"),
        (f"seconds {goal}", "seconds_to_target", ".0f"),
        ("error of the difficulty estimate", "estimation_mae", ".3f"),
        ("error of 8 fresh rollouts", "fresh_mae", ".3f"),
    ):
        add(title, [preset[key] for preset in presets.values()], form)
    for key, form in (("accuracy", ".3f"), ("tokens", ".1f")):
        for level in levels:
            parts = [preset["by_level"].get(level, {}) for preset in presets.values()]
            add(f"{key}, level {level}", [part.get(key) for part in parts], form)
    Console().print(table)
