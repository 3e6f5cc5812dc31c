"""`dare report`: a run, or several, as one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dare.errors import require


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, finished or under way, folders of them (a study), or NAME=FOLDER.",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            help="The file to write; else report.html in the run's folder, runs.html of several."
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Follow the runs live in the browser until Ctrl-C.")
    ] = False,
    port: Annotated[int | None, typer.Option(help="Port of --serve on this machine.")] = None,
) -> None:
    """Write a report: one HTML file with everything in it, readable without a network.

    Training curves by step, tokens and time, the difficulty of all prompts over time, how right
    the estimate is, tiers and levels, time and memory, evaluations, and rollouts to read. Several
    runs are compared by method, with intervals over seeds.

    [bold]Examples[/bold]

    [cyan]dare report runs/quickstart/dare[/cyan]  # writes report.html into that folder

    [cyan]dare report runs/methods --out methods.html[/cyan]  # a study, compared

    [cyan]dare report before=runs/a after=runs/b[/cyan]

    [cyan]dare report runs/mine --serve[/cyan]  # follow a run that is under way
    """
    if serve:
        require(out is None, "--out", out, "goes with a file, not with --serve")
        follow(runs, 8321 if port is None else port)
        return
    require(port is None, "--port", port, "goes with --serve")
    from dare.report.document import default_file, write_report

    file = default_file(runs) if out is None else Path(out)
    shown = write_report(runs, file)
    size = file.stat().st_size / 1e6
    typer.echo(f"wrote {file} ({len(shown['runs'])} run(s), {size:.1f} MB)")


def follow(runs: list[str], port: int) -> None:
    """Serve until Ctrl-C."""
    from dare.report.serve import HOST, make_server

    with make_server(runs, port) as server:
        typer.echo(f"http://{HOST}:{server.server_address[1]}/ follows the run (Ctrl-C ends)")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return
