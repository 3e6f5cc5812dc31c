"""`dare data`: bring data sets into one schema, clean them, and look at them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dare.commands.options import Columns, Json, filled
from dare.errors import require

data = typer.Typer(
    help="Data: prepare training files, and look at any data set.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Split = Annotated[str | None, typer.Option(help="Split of a hub id; train otherwise.")]


@data.command()
def prepare(
    what: Annotated[
        list[str],
        typer.Argument(help="paper-math, paper-code, a YAML recipe, or data files and hub ids."),
    ],
    out: Annotated[
        str | None,
        typer.Option(help="X.parquet, X.jsonl or X.jsonl.gz; data/NAME.parquet.", callback=filled),
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of local copies, instead of the hub.")
    ] = None,
    columns: Columns = None,
    split: Split = None,
    levels: Annotated[str | None, typer.Option(help="Levels to keep, as in 3,4,5.")] = None,
    take: Annotated[int | None, typer.Option(help="Rows to draw from each source.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the draw; the recipe's or 0.")] = None,
    decontaminate: Annotated[
        str | None,
        typer.Option(help="Evaluation sets to keep out: all, none, names or files with commas."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Recognise evaluation problems by ngrams or by text alone.")
    ] = None,
    repeats: Annotated[str | None, typer.Option(help="drop or keep repeated problems.")] = None,
    allow_fewer: Annotated[
        bool, typer.Option("--allow-fewer", help="Take what there is where rows are too few.")
    ] = False,
    drop_bad: Annotated[
        bool, typer.Option("--drop-bad", help="Drop rows that cannot be used; an error otherwise.")
    ] = False,
    json: Json = False,
) -> None:
    """Write one clean training file, a report and the list of dropped rows.

    Rows are brought into one schema, problems that repeat or that are in an evaluation set are
    dropped, and rows are drawn with a fixed seed. OUT.report.json counts what happened,
    OUT.dropped.jsonl names every row that was dropped, and why.

    [cyan]dare data prepare paper-math[/cyan]  # the paper's 35,512 problems, from the hub

    [cyan]dare data prepare paper-math --data-dir copies --allow-fewer[/cyan]

    [cyan]dare data prepare mine.jsonl --columns prompt=question --out mine.parquet[/cyan]
    """
    from dare.data.prepare import prepare as run
    from dare.data.spec import load_spec
    from dare.data.write import beside

    folder = None if data_dir is None else Path(data_dir)
    there = folder is None or os.path.isdir(folder)
    require(there, "--data-dir", data_dir, "there is no such folder")
    spec = load_spec(
        what,
        folder,
        columns=parse_columns(columns),
        split=split,
        levels=None if levels is None else [word.strip() for word in levels.split(",")],
        take=take,
        seed=seed,
        decontaminate=decontaminate,
        by=by,
        repeats=repeats,
        bad_rows="drop" if drop_bad else None,
    )
    path = Path(out or f"data/{spec.name}.parquet")
    with _progress() as shown:
        report = run(spec, path, allow_fewer=allow_fewer, progress=shown)
    if json:
        _echo_json(report)
        return
    from dare.data.inspect import prepared

    Console().print(prepared(report))
    typer.echo(f"wrote {path}, {beside(path, '.report.json').name} and ...dropped.jsonl")


@data.command()
def inspect(
    source: Annotated[str, typer.Argument(help="A data file, a pattern of files, or a hub id.")],
    columns: Columns = None,
    split: Split = None,
    examples: Annotated[int, typer.Option(help="Rows to show, drawn at random.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of that draw.")] = 0,
    json: Json = False,
) -> None:
    """Show what a data set holds: counts, levels, lengths, gaps, repeats, examples."""
    from dare.data.inspect import inspect as look

    require(examples >= 0, "--examples", examples, "must not be negative")
    figures = look(
        source,
        split=split or "train",
        columns=parse_columns(columns),
        examples=examples,
        seed=seed,
    )
    if json:
        _echo_json(figures)
        return
    from dare.data.inspect import inspected

    Console().print(inspected(source, figures))


def parse_columns(text: str | None) -> dict[str, str] | None:
    """{field: column} of `prompt=question,answer=gold`."""
    if text is None:
        return None
    pairs = [word.partition("=") for word in text.split(",") if word.strip()]
    require(pairs, "--columns", text, "names no column; write field=column, or leave it out")
    for field, equals, column in pairs:
        good = field.strip() and equals and column.strip()
        require(good, "--columns", text, "write field=column, with commas between them")
    named = {field.strip(): column.strip() for field, _, column in pairs}
    require(len(named) == len(pairs), "--columns", text, "names a field twice; keep one")
    return named


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    """A line a source on a terminal; nothing elsewhere."""
    console = Console(stderr=True)
    parts = (SpinnerColumn(), TextColumn("{task.description}"))
    rows = TextColumn("{task.completed:,.0f} rows")
    speed = TextColumn("{task.speed:,.0f} rows/s" if console.is_terminal else "")
    with Progress(
        *parts, rows, speed, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        tasks: dict[str, Any] = {}

        def shown(source: str, count: int) -> None:
            if source not in tasks:
                tasks[source] = bar.add_task(source, total=None)
            bar.update(tasks[source], completed=count)

        yield shown


def _echo_json(value: Any) -> None:
    import json

    from dare.data.write import to_json

    typer.echo(json.dumps(json.loads(to_json(value)), indent=2, ensure_ascii=False))
