"""A table of text as Markdown, LaTeX and on the terminal, from one list of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dare.text import legible

_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "τ": r"$\tau$",
}


@dataclass(frozen=True)
class Table:
    """A title, a head and rows of text; the first column names the row."""

    title: str
    head: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """A table as GitHub reads it."""
        return f"**{self.title}**\n\n{self.body()}\n"

    def body(self) -> str:
        """The same without the title."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in cells)

    def latex(self) -> str:
        """A table for a paper; needs booktabs."""
        lines = [" & ".join(_escape(cell) for cell in row) + r" \\" for row in self.rows]
        head = " & ".join(_escape(cell) for cell in self.head) + r" \\"
        parts = [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{_escape(self.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(parts) + "\n"


def _escape(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)


def print_tables(tables: Sequence[Table]) -> None:
    """Tables on the terminal; names in them may come from anybody's data."""
    from rich.console import Console
    from rich.table import Table as Shown
    from rich.text import Text

    console = Console(highlight=False)
    for table in tables:
        shown = Shown(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for place, name in enumerate(table.head):
            side: Literal["left", "right"] = "right" if place else "left"
            shown.add_column(Text(legible(name)), overflow="fold", justify=side)
        for row in table.rows:
            shown.add_row(*(Text(legible(cell)) for cell in row))
        console.print(Text(f"\n{legible(table.title)}", style="bold"))
        console.print(shown)
