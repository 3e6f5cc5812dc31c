"""`dare difficulty`: look at what a run thinks of every prompt."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dare.commands.options import Json
from dare.config.nested import within
from dare.errors import InvalidInput, require
from dare.text import legible

if TYPE_CHECKING:
    from dare.runs.difficulty import Filter

_COLOURS = {"easy": "green", "medium": "yellow", "hard": "red"}
_WIDTH = 48


def difficulty(
    run: Annotated[str, typer.Argument(help="The folder of a run, finished or under way.")],
    tier: Annotated[list[str] | None, typer.Option(help="easy, medium or hard; repeat it.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Data source; repeat it.")] = None,
    level: Annotated[list[str] | None, typer.Option(help="Level of the data; repeat it.")] = None,
    seen: Annotated[
        bool | None, typer.Option("--seen/--unseen", help="Rolled out at least once, or never.")
    ] = None,
    least: Annotated[float, typer.Option("--min", help="Lowest difficulty.")] = 0.0,
    most: Annotated[float, typer.Option("--max", help="Highest difficulty.")] = 1.0,
    sort: Annotated[str, typer.Option(help="A column, as in visits:desc.")] = "difficulty:desc",
    limit: Annotated[int, typer.Option(help="Prompts listed; 0 lists none.")] = 10,
    out: Annotated[
        str | None, typer.Option(help="Write all that pass to FILE.csv or FILE.parquet.")
    ] = None,
    json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it live until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks of --watch.")] = 2.0,
) -> None:
    """Show the difficulty table of a run: a histogram, a summary, a list.

    Difficulty is the estimated failure rate of the policy as it is now: 0 is always solved, 1 is
    never solved.
    """
    from dare.runs.difficulty import FILE, Filter, export, has_tiers, histogram, summarise
    from dare.runs.files import check_out

    wanted = Filter(tier or (), source or (), level or (), seen, least, most)
    require(limit >= 0, "--limit", limit, "must not be negative")
    limit = min(limit, sys.maxsize)  # more than there can be are all
    if out is not None:
        check_out(Path(out), ".csv", ".parquet")
    folder = Path(run)
    if tier and os.path.isdir(folder):
        fix = "tiers are off in this run; choose by difficulty, as in --min 0.8"
        require(has_tiers(folder), "--tier", ", ".join(tier), fix)
    if watch:
        require(not json and out is None, "--watch", True, "goes with neither --json nor --out")
        within("(0, 86400]", every, "--every")
        watch_table(lambda: look(folder, wanted, sort, limit), every)
        return
    found = _chosen(folder, wanted, sort)
    if found is None:
        raise InvalidInput("run", run, f"has no complete {FILE} yet; --watch waits for it")
    chosen, of = found
    if out is not None:
        export(chosen, Path(out))
    if json:
        rows = chosen.slice(0, limit).to_pylist()
        figures = {**summarise(chosen, of), "histogram": histogram(chosen), "rows": rows}
        typer.echo(dumps(figures, indent=2, ensure_ascii=False))
        return
    Console().print(_page(chosen, of, limit, has_tiers(folder)))
    if out is not None:
        typer.echo(f"wrote {chosen.num_rows} prompts to {out}")


def look(folder: Path, wanted: Filter, sort: str, limit: int) -> RenderableType | None:
    """What there is to see now, or None where the run has written no table yet."""
    from dare.runs.difficulty import has_tiers

    found = _chosen(folder, wanted, sort)
    return None if found is None else _page(*found, limit, has_tiers(folder))


def _chosen(folder: Path, wanted: Filter, sort: str) -> tuple[Any, int] | None:
    """The prompts that pass, in order, and how many there are in all."""
    from dare.runs.difficulty import order, read, select

    table = read(folder)
    return None if table is None else (order(select(table, wanted), sort), table.num_rows)


def watch_table(look_again: Callable[[], RenderableType | None], every: float) -> None:
    """Look, show, sleep, until Ctrl-C; while there is nothing new to see the last page stays."""
    page: RenderableType = Text("waiting for the first table of the run (Ctrl-C ends) ...")
    try:
        with Live(page, auto_refresh=False) as live:
            while True:
                page = look_again() or page
                live.update(page, refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        return


def _page(chosen: Any, of: int, limit: int, tiers: bool) -> RenderableType:
    """Histogram, summary and list, one below the other; with `tiers`, how each splits."""
    from dare.runs.difficulty import histogram, summarise

    parts = [_bars(histogram(chosen), tiers), _lines(summarise(chosen, of), tiers)]
    if limit and chosen.num_rows:
        parts.append(_list(chosen.slice(0, limit), chosen.num_rows, tiers))
    return Group(*parts)


def _bars(bins: list[dict[str, Any]], tiers: bool) -> RenderableType:
    """A line a bin: its range, a bar in the colours of the tiers, its count."""
    text = Text()
    largest = max(1, *(line["count"] for line in bins))
    for line in bins:
        text.append(f"{line['from']:.2f} - {line['to']:.2f} ", style="dim")
        end = 0
        drawn = 0
        for tier, colour in _COLOURS.items():  # cut at running sums, so that widths add up
            end += line[tier]
            stop = -(-end * _WIDTH // largest)  # any prompt is at least one block
            text.append("█" * (stop - drawn), style=colour if tiers else "")
            drawn = stop
        text.append(f" {line['count']:,}\n" if line["count"] else "\n")
    return text


def _lines(figures: dict[str, Any], tiers: bool) -> RenderableType:
    text = Text(f"{figures['prompts']:,} of {figures['of']:,} prompts")
    if not figures["prompts"]:
        return text.append("; none passes the filters")
    text.append(f", mean difficulty {figures['mean']:.3f}, median {figures['median']:.3f}\n")
    for tier, colour in _COLOURS.items() if tiers else ():
        count = figures["tiers"][tier]
        text.append(f"{tier} ", style=colour)
        text.append(f"{count:,} ({count / figures['prompts']:.0%})  ")
    text.append("\n" if tiers else "").append(
        f"seen {figures['seen']:,} ({figures['coverage']:.1%})"
    )
    if figures["last_step"] is not None:
        text.append(f", {figures['visits']:,} visits, the last in step {figures['last_step'] + 1}")
    return text.append("\n")


def _list(rows: Any, of: int, tiers: bool) -> RenderableType:
    # Whether a prompt was tried shows in the visits; without this column 80 columns suffice.
    hidden = {"estimate", "evidence"}
    if "prompt" in rows.column_names:
        hidden |= {"id", "source"}
    hidden |= set() if tiers else {"tier"}
    names = [name for name in rows.column_names if name not in hidden]
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in names:
        wide = 1 if name == "prompt" else None
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=wide)
    for row in rows.to_pylist():
        cells = []
        for name in names:
            shown = f"{row[name]:.3f}" if isinstance(row[name], float) else str(row[name])
            if name == "last_step":
                shown = str(row[name] + 1) if row[name] >= 0 else "-"
            shown = " ".join(legible(shown, 300).split())
            cells.append(Text(shown, style=_COLOURS.get(shown, "") if name == "tier" else ""))
        table.add_row(*cells)
    if rows.num_rows < of:
        table.caption = f"{of - rows.num_rows:,} more; --limit lists them, --out writes them all"
    return table
