"""Reports and figures of data sets on the terminal."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dare.data.schema import problem_text

_WIDTH = 40
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a data set must not steer the terminal


def prepared(report: dict[str, Any]) -> RenderableType:
    """A line a source, and what is missing."""
    heads = ("source", "read", "bad", "level", "repeats", "in evaluation", "not drawn", "wanted")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for place, head in enumerate((*heads, "got")):
        table.add_column(head, justify="right" if place else "left")
    for source in report["sources"]:
        lost, wanted = source["dropped"], source["wanted"]
        repeats = lost["same_text"] + lost["same_text_after_normalisation"]
        evaluation = [lost[f"evaluation_problems_by_{how}"] for how in ("text", "ngrams")]
        short = wanted is not None and source["got"] != wanted
        numbers = [source["read"], lost["bad_rows"], lost["other_level"], repeats, sum(evaluation)]
        cells = [Text(f"{number:,}") for number in (*numbers, lost["not_drawn"])]
        cells.append(Text("-" if wanted is None else f"{wanted:,}"))
        cells.append(Text(f"{source['got']:,}", style="red" if short else "green"))
        table.add_row(Text(source["name"]), *cells)
    lines: list[RenderableType] = [table]
    wanted = report["wanted"]
    total = f"{report['rows']:,} rows"
    if wanted is not None and report["rows"] != wanted:
        lines.append(Text(f"{total}, not the {wanted:,} that the recipe asks for", "red"))
    else:
        lines.append(Text(total))
    missing = report["decontamination"]["not_checked"]
    if missing:
        lines.append(Text(f"not checked, no local copy: {', '.join(missing)}", style="yellow"))
    return Group(*lines)


def inspected(name: str, figures: dict[str, Any]) -> RenderableType:
    """Counts, bars and a few rows."""
    head = Text(f"{figures['rows']:,} rows in {name}\n")
    if figures["bad_rows"]:
        head.append(f"{figures['bad_rows']:,} cannot be used, the first: ", style="red")
        head.append(f"{figures['bad_row_examples'][0]}\n", style="red")
    head.append(f"columns: {_shown(', '.join(figures['columns']))}\n")
    missing = {key: count for key, count in figures["missing"].items() if count}
    words = ", ".join(f"{key} {count:,}" for key, count in missing.items()) or "nothing"
    head.append(f"missing: {words}\n")
    repeats = figures["repeats"]
    head.append(
        f"repeats: {repeats['same_text']:,} with the same text, "
        f"{repeats['same_text_after_normalisation']:,} after normalisation, "
        f"{repeats['with_another_answer']:,} of these with another answer\n"
    )
    parts: list[RenderableType] = [
        head,
        _bars("source", figures["sources"]),
        _bars("level", figures["levels"]),
    ]
    for field, lengths in figures["characters"].items():
        cuts = ", ".join(f"{key} {lengths[key]:,}" for key in ("least", "median", "95%", "most"))
        bins = {f"{bin['from']:,}-{bin['to']:,}": bin["count"] for bin in lengths["histogram"]}
        parts.append(_bars(f"characters of the {field} ({cuts})", bins))
    parts += [_example(row) for row in figures["examples"]]
    return Group(*parts)


def _bars(title: str, counts: dict[str, int]) -> Text:
    text = Text(f"{title}\n", style="bold")
    largest = max(counts.values(), default=1)
    wide = min(24, max((len(name) for name in counts), default=0))
    for name, count in ((_shown(name), count) for name, count in counts.items()):
        text.append(f"  {name[:wide]:>{wide}} ", style="not bold")
        text.append("█" * -(-count * _WIDTH // largest), style="not bold cyan")
        text.append(f" {count:,}\n", style="not bold")
    return text


def _example(row: dict[str, Any]) -> Text:
    words = _shown(problem_text(row["prompt"]))
    text = Text(f"{row['where']}  {row['id']}\n", style="bold")
    text.append(f"  {words[:400]}{'...' if len(words) > 400 else ''}\n", style="not bold")
    tests = None if row["tests"] is None else f"{len(row['tests'])} tests"
    for name, value in (("answer", row["answer"]), ("tests", tests), ("level", row["level"])):
        if value is not None:
            text.append(f"  {name}: {_shown(str(value)[:200])}\n", style="not bold green")
    return text


def _shown(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
