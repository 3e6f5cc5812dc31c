"""`dare compare`: runs side by side, by method and seed."""

from __future__ import annotations

import json as encoder
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dare.commands.options import Json, filled


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Run folders, folders of them (a study), or NAME=FOLDER."
        ),
    ],
    base: Annotated[
        str | None,
        typer.Option(help="Method that gains and 'times fewer' refer to; the first otherwise."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Accuracy to reach (tau). Otherwise the final one of the base run with that seed."
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder for the tables (Markdown, CSV, LaTeX), figures and JSON.", callback=filled
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare runs: which method learns more from the same tokens, and in the same time?

    Runs are grouped by method; figures are means over seeds with 95 % intervals
    by Student's t. Those of accuracies and gains take in the choice of problems too,
    where the runs kept the score of each problem.

    [bold]accuracy[/bold], [bold]gain[/bold]: at the end, and over the base run of the same seed;
    then at the tokens, and at the seconds of training, that every run has had.

    [bold]AUC[/bold]: mean accuracy over the tokens that all runs have generated.

    [bold]S_tau[/bold]: the step at which a run first reaches the target; a median,
    where a run that never does counts as later than all.

    [bold]times fewer[/bold] steps, tokens, seconds: those of the base until it reached the target
    over those of the method; 0 if it never does.

    [bold]Examples[/bold]

    [cyan]dare compare runs/methods[/cyan]  # a study

    [cyan]dare compare runs/methods --base grpo --target 0.5 --out report[/cyan]

    [cyan]dare compare before=runs/a after=runs/b --json[/cyan]
    """
    from dare.runs.files import check_out
    from dare.runs.methods import load_runs
    from dare.study.comparison import compare_runs

    if out is not None:
        check_out(Path(out), folder=True)
    found, unfinished = load_runs(runs)
    figures = compare_runs(found, base, target)
    if unfinished:
        typer.echo(f"left out {len(unfinished)} unfinished run(s)", err=True)
    present(figures, json=json, out=None if out is None else Path(out))


def present(
    figures: dict[str, Any], *, json: bool, out: Any = None, fields: Sequence[str] = ()
) -> None:
    """Print the tables or the JSON, and write the files where a folder is named."""
    from dare.report.pictures import write_comparison
    from dare.study.tables import tables_of
    from dare.table import print_tables

    if json:
        typer.echo(encoder.dumps(figures, indent=1))
    else:
        print_tables(tables_of(figures, fields))
    if out is not None:
        written, reason = write_comparison(figures, out, fields)
        typer.echo(f"wrote {', '.join(path.name for path in written)} to {out}", err=True)
        if reason is not None:
            typer.echo(reason, err=True)
