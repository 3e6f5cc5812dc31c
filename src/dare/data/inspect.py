"""What a data set holds: counts, levels, sources, lengths, gaps, repeats, examples; and shown."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dare.data.load import Source, read_rows
from dare.data.prepare import BATCH
from dare.data.repeats import Repeats, key_of, simplified, squeezed
from dare.data.row import lookup, problem_text, text_of, where_is
from dare.data.schema import EMPTY, check_columns, to_row
from dare.errors import InvalidInput
from dare.text import natural

_OPTIONAL = ("answer", "tests", "level", "solution")
_LISTED = 20
_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


def inspect(
    source: Source,
    *,
    split: str = "train",
    columns: Mapping[str, str] | None = None,
    examples: int = 3,
    seed: int = 0,
) -> dict[str, Any]:
    """Figures of a data set in one pass; a row that cannot be used is counted, not an error."""
    check_columns(columns or {})
    found, empty = _Figures(examples, seed), dict(columns or {})
    for raw in read_rows(source, split=split):
        empty = {key: name for key, name in empty.items() if lookup(raw, name) is None}
        found.rows += 1
        found.columns.update(map(str, raw))
        try:
            found.take(to_row(raw, "data", columns, need_answer=False), raw)
        except InvalidInput as error:
            found.bad += 1
            found.bad_examples = [*found.bad_examples, str(error)][:_LISTED]
    for key, name in empty.items():
        raise InvalidInput(f"columns.{key}", name, EMPTY)
    found.flush()
    return found.to_dict()


class _Figures:
    """Running figures; texts are dropped batch by batch."""

    def __init__(self, examples: int, seed: int) -> None:
        self.rows = self.bad = 0
        self.bad_examples: list[str] = []
        self._counts: dict[str, Counter[str]] = {"source": Counter(), "level": Counter()}
        self.columns: Counter[str] = Counter()
        self._missing = dict.fromkeys(_OPTIONAL, 0)
        self._unscored = self._messages = 0
        self._lengths: dict[str, list[np.ndarray[Any, np.dtype[np.int64]]]] = {}
        self._repeats, self._same, self._normalised, self._conflicts = Repeats(), 0, 0, 0
        self._batch: list[dict[str, Any]] = []
        self._wanted, self._examples = examples, list[dict[str, Any]]()
        self._random = random.Random(seed)
        self._done = 0

    def take(self, row: dict[str, Any], raw: Mapping[str, Any]) -> None:
        """Count one row."""
        self._counts["source"][row["source"]] += 1
        self._counts["level"][row["level"] or "none"] += 1
        for name in _OPTIONAL:
            self._missing[name] += row[name] is None
        self._unscored += row["answer"] is None and row["tests"] is None
        self._messages += not isinstance(row["prompt"], str)
        place = len(self._examples)
        if place < self._wanted:
            self._examples.append({"where": where_is(raw), **row})
        elif (place := self._random.randrange(self.rows)) < self._wanted:
            self._examples[place] = {"where": where_is(raw), **row}
        self._batch.append(row)
        if len(self._batch) == BATCH:
            self.flush()

    def flush(self) -> None:
        """Look at a batch together."""
        batch, self._batch = self._batch, []
        if not batch:
            return
        texts = [problem_text(row["prompt"]) for row in batch]
        for name, values in (
            ("prompt", texts),
            ("answer", [row["answer"] for row in batch if row["answer"] is not None]),
            ("solution", [row["solution"] for row in batch if row["solution"] is not None]),
        ):
            self._lengths.setdefault(name, []).append(np.array([len(v) for v in values], np.int64))
        keys = [key_of(squeezed(simplified(text))) for text in texts]
        exact = [text_of(row["prompt"]) for row in batch]
        answers = [row["answer"] for row in batch]
        for repeat in self._repeats.add(self._done, keys, exact, answers):
            if repeat is not None:
                self._same += repeat.same_text
                self._normalised += not repeat.same_text
                self._conflicts += not repeat.same_answer
        self._done += len(batch)

    def to_dict(self) -> dict[str, Any]:
        """All figures."""
        lengths = {}
        for name, parts in self._lengths.items():
            values = np.concatenate(parts)
            if len(values):
                cuts = np.quantile(values, _QUANTILES).round().astype(int).tolist()
                counts, edges = np.histogram(np.log2(np.maximum(values, 1)), np.arange(0, 25, 1))
                bins = [
                    {"from": int(2**low), "to": int(2 ** (low + 1)) - 1, "count": int(count)}
                    for low, count in zip(edges[:-1], counts, strict=True)
                    if count
                ]
                names = ("least", "5%", "median", "95%", "most")
                lengths[name] = {**dict(zip(names, cuts, strict=True)), "histogram": bins}
        return {
            "rows": self.rows,
            "bad_rows": self.bad,
            "bad_row_examples": self.bad_examples,
            "columns": dict(self.columns),
            "sources": _most(self._counts["source"]),
            "levels": dict(sorted(_most(self._counts["level"]).items(), key=_by_level)),
            "missing": {**self._missing, "answer and tests": self._unscored},
            "prompts_as_messages": self._messages,
            "repeats": {
                "same_text": self._same,
                "same_text_after_normalisation": self._normalised,
                "with_another_answer": self._conflicts,
            },
            "characters": lengths,
            "examples": self._examples,
        }


def _most(counts: Counter[str]) -> dict[str, int]:
    """The commonest, and the rest as one."""
    listed = dict(counts.most_common(_LISTED))
    rest = counts.total() - sum(listed.values())
    return {**listed, **({"others": rest} if rest else {})}


def _by_level(item: tuple[str, int]) -> tuple[bool, tuple[int, float, str]]:
    return item[0] in ("none", "others"), natural(item[0])


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
