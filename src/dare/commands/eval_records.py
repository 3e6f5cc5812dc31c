"""`dare eval show` and `dare eval compare`: looking at evaluations that are there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dare.evaluation.records import Record
    from dare.table import Table


def show(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="A folder of `dare eval`.")],
    benchmark: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Wrong responses.")] = False,
    right: Annotated[bool, typer.Option("--right", help="Right responses.")] = False,
    unscored: Annotated[bool, typer.Option("--unscored", help="Those nobody could score.")] = False,
    truncated: Annotated[
        bool, typer.Option("--truncated", help="Those that were cut off.")
    ] = False,
    disagree: Annotated[
        bool, typer.Option("--disagree", help="Judged otherwise than the file's own label.")
    ] = False,
    level: Annotated[list[str] | None, typer.Option(help="Level; repeat it.")] = None,
    subject: Annotated[str | None, typer.Option(help="Subject.")] = None,
    id: Annotated[str | None, typer.Option(help="One problem.")] = None,
    contains: Annotated[str | None, typer.Option(help="Words in prompt or response.")] = None,
    limit: Annotated[int, typer.Option(help="Responses shown.")] = 5,
    skip: Annotated[int, typer.Option(help="Responses passed over first.")] = 0,
    chars: Annotated[int, typer.Option(help="Characters shown of each text; 0 shows all.")] = 1500,
    json: Annotated[bool, typer.Option("--json", help="JSON lines instead of text.")] = False,
) -> None:
    """Browse the records of an evaluation.

    [cyan]dare eval show runs/eval/mine --wrong --level 5[/cyan]
    """
    import json as encoder
    from itertools import islice

    from dare.errors import require
    from dare.evaluation.browse import Wanted, check, pick
    from dare.evaluation.records import read_records

    for option, value in (("--limit", limit), ("--skip", skip), ("--chars", chars)):
        require(value >= 0, option, value, "must not be negative")
    flags = (right, wrong, unscored, truncated, disagree)
    names = ("right", "wrong", "unscored", "truncated", "disagree")
    kinds = tuple(name for name, given in zip(names, flags, strict=True) if given)
    wanted = Wanted(benchmark, tuple(level or ()), subject, id, contains, kinds)
    records = read_records(folder)
    check(records, wanted)
    found = [(record, place) for record, places in pick(records, wanted) for place in places]
    shown = list(islice(found, skip, skip + limit))
    if json:
        for record, place in shown:
            typer.echo(encoder.dumps({**record, "response": place}))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for record, place in shown:
        console.print(_page(record, place, chars))
    places = f"{skip + 1} to {skip + len(shown)} of " if shown else ""
    console.print(f"responses: {places}{len(found)} that fit, in {len(records)} problems")


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Folders of `dare eval`, or NAME=FOLDER.")
    ],
    k: Annotated[
        int | None, typer.Option(help="Solved means: by one of the first k responses.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Write FILE.json or FILE.md.")] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> None:
    """Compare evaluations on the problems they share: differences, pass@k, overlap.

    The first is the base of the differences, which are paired by problem.
    """
    import json as encoder

    from dare.errors import InvalidInput
    from dare.evaluation.claim import write_whole
    from dare.evaluation.compare import compare as compared
    from dare.evaluation.compare import load_named, tables_of
    from dare.evaluation.tables import page_of

    if out is not None and Path(out).suffix not in (".json", ".md"):
        raise InvalidInput("--out", out, "must end in .json or .md")
    found = compared(load_named(runs), k)
    tables, text = tables_of(found), encoder.dumps(found, indent=1)
    if out is not None:
        write_whole(Path(out), text + "\n" if out.endswith(".json") else page_of(tables))
    if json:
        typer.echo(text)
    else:
        print_tables(tables)


def print_tables(tables: Sequence[Table]) -> None:
    """Tables on the terminal; names in them may come from anybody's data."""
    from rich.console import Console
    from rich.table import Table as Shown
    from rich.text import Text

    from dare.report.text import legible

    console = Console(highlight=False)
    for table in tables:
        shown = Shown(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for place, name in enumerate(table.head):
            shown.add_column(
                Text(legible(name)), overflow="fold", justify="right" if place else "left"
            )
        for row in table.rows:
            shown.add_row(*(Text(legible(cell)) for cell in row))
        if table.title:
            console.print(Text(f"\n{table.title}", style="bold"))
        console.print(shown)


def _page(record: Record, place: int, chars: int) -> Any:
    """One response with its problem; whatever they contain is shown as plain text."""
    from rich.console import Group
    from rich.rule import Rule
    from rich.text import Text

    from dare.evaluation.browse import verdict
    from dare.report.text import legible

    def part(title: str, text: Any, style: str = "") -> Text:
        longest = chars or len(str(text)) + 1
        return Text.assemble((f"{title}\n", "dim"), (legible(str(text), longest), style), "\n")

    kind = verdict(record, place)
    colour = {"right": "green", "wrong": "red"}.get(kind, "yellow")
    facts = [
        f"level {record['level']}" if record["level"] is not None else "",
        str(record["subject"] or ""),
        f"{record['tokens'][place]} tokens" if record["tokens"][place] is not None else "",
        str(record["finish"][place] or ""),
    ]
    if "labels" in record:
        facts.append(f"label {record['labels'][place]}")
    title = f"{record['benchmark']} {record['id']}, response {place + 1}"
    head = Text(legible(title, 200), style="bold")
    head.append(f"  {kind}", style=colour)
    head.append(legible("  " + ", ".join(fact for fact in facts if fact), 300), style="dim")
    parts: list[Any] = [Rule(style="dim"), head, part("problem", record["prompt"])]
    if record["gold"] is not None:
        parts.append(part("gold", record["gold"], "cyan"))
    parts.append(part("response", record["responses"][place]))
    return Group(*parts)
