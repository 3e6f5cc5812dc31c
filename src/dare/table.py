"""A table of text as Markdown and LaTeX, from one list of rows."""

from __future__ import annotations

from dataclasses import dataclass

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
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        body = "\n".join(f"| {' | '.join(line)} |" for line in cells)
        return f"**{self.title}**\n\n{body}\n"

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
