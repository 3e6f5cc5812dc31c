"""Sources to one clean file: mapped, filtered, without repeats and evaluation problems, drawn."""

from __future__ import annotations

import itertools
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dare.data.contamination import Decontaminator, Match
from dare.data.evaluation_sets import EvaluationSets, load_sets
from dare.data.hash_index import HashIndex
from dare.data.load import read_rows
from dare.data.normal import key_of, simplified, squeezed
from dare.data.repeats import Repeat, Repeats
from dare.data.report import Tally, report_of
from dare.data.row import where_is, without
from dare.data.schema import GUESSES, problem_text, text_of, to_row
from dare.data.spec import DataSpec, SourceSpec
from dare.data.write import RowWriter, check_out, to_json
from dare.errors import InvalidInput

BATCH = 2048
Progress = Callable[[str, int], None]


@dataclass
class _Candidate:
    """A row on its way, with what it is recognised by."""

    row: dict[str, Any]
    where: str
    text: str
    simple: str
    key: int


def prepare(
    spec: DataSpec,
    out: Path,
    *,
    allow_fewer: bool = False,
    progress: Progress = lambda source, rows: None,
) -> dict[str, Any]:
    """Write `out`, `out.report.json` and `out.dropped.jsonl`; returns the report.

    Rows stream through in batches. What is kept of a row is 16 bytes to recognise repeats and 8
    for a draw, so memory hardly grows with the data. Nothing is written unless all went well.
    """
    check_out(out)
    checked = any(source.by != "none" for source in spec.sources)
    sets = load_sets(spec.decontaminate if checked else (), spec.data_dir)
    room = _Room(spec, sets)
    with ExitStack() as stack:
        writer = stack.enter_context(RowWriter(out))
        dropped = stack.enter_context(RowWriter(beside(out, ".dropped.jsonl")))
        for source in spec.sources:
            batches = room.pass_through(source, dropped, progress)
            if source.take is not None:
                batches = _drawn(batches, beside(out, ".spool.jsonl"), source.take, spec.seed)
            for batch in batches:
                room.tallies[source.name].kept += len(batch)
                writer.write(batch)
        _check_counts(spec, room.tallies, allow_fewer)
        if not writer.rows:
            raise InvalidInput("data", spec.name, "no row is left; see the rules of the recipe")
        writer.keep()
        dropped.keep()
        report = report_of(spec, sets, room.tallies, out)
        _write_report(beside(out, ".report.json"), report)
    return report


def beside(out: Path, ending: str) -> Path:
    """A file next to the output: data.parquet -> data.parquet.report.json."""
    return out.with_name(out.name + ending)


class _Room:
    """The state of one preparation."""

    def __init__(self, spec: DataSpec, sets: EvaluationSets) -> None:
        self._spec = spec
        self._decontaminator = (
            Decontaminator(sets.problems, n=spec.ngram, share=spec.share) if sets.problems else None
        )
        self._repeats = Repeats()
        self._seen = 0  # rows numbered over all sources
        self.tallies = {source.name: Tally(source.name, source.wanted) for source in spec.sources}

    def pass_through(
        self, source: SourceSpec, dropped: RowWriter, progress: Progress
    ) -> Iterator[list[dict[str, Any]]]:
        """The rows of a source that pass, a batch at a time; the others go to `dropped`."""
        tally, own_ids = self.tallies[source.name], HashIndex()
        mapped = self._mapped(source, tally, dropped)
        while batch := list(itertools.islice(mapped, BATCH)):
            progress(source.name, tally.read)
            repeats = self._repeats.add(
                self._seen,
                [item.key for item in batch],
                [item.text for item in batch],
                [item.row["answer"] for item in batch],
            )
            _check_ids(batch, repeats, own_ids, self._seen)
            self._seen += len(batch)
            matches = self._matches(source, batch)
            left = []
            for item, repeat, found in zip(batch, repeats, matches, strict=True):
                if found:
                    dropped.write_lines([tally.contaminated(item.row, item.where, found)])
                elif repeat is not None and source.repeats == "drop":
                    dropped.write_lines([tally.repeat(item.row, item.where, repeat)])
                else:
                    left.append(item.row)
            yield left
        progress(source.name, tally.read)
        if "level" in source.columns and not tally.levels:
            fix = "no row has this column"
            raise InvalidInput(f"source {source.name}: columns.level", source.columns["level"], fix)

    def _matches(self, source: SourceSpec, batch: list[_Candidate]) -> list[list[Match]]:
        if self._decontaminator is None or source.by == "none":
            return [[] for _ in batch]
        return self._decontaminator.match_simplified(
            [item.simple for item in batch], [item.key for item in batch], source.by == "ngrams"
        )

    def _mapped(self, source: SourceSpec, tally: Tally, dropped: RowWriter) -> Iterator[_Candidate]:
        """Rows in the schema, at the levels that are wanted."""
        for place in source.places:
            for raw in read_rows(place):
                tally.read += 1
                try:
                    row = _row(raw, source)
                except InvalidInput as error:
                    if self._spec.bad_rows == "error":
                        raise
                    dropped.write_lines([tally.bad(where_is(raw), error)])
                    continue
                tally.levels += row["level"] is not None
                if source.levels and row["level"] not in source.levels:
                    tally.other_level += 1
                    continue
                simple = simplified(problem_text(row["prompt"]))
                key = key_of(squeezed(simple))
                yield _Candidate(row, where_is(raw), text_of(row["prompt"]), simple, key)


def _row(raw: Mapping[str, Any], source: SourceSpec) -> dict[str, Any]:
    if not source.keep_source:
        raw = without(raw, GUESSES["source"])
    row = to_row(raw, source.name, source.columns, need_answer=not source.answers)
    if row["answer"] is None and source.answers:
        words = problem_text(row["prompt"])
        known = (item["answer"] for item in source.answers if words.startswith(item["begins"]))
        row["answer"] = next(known, None)
        if row["answer"] is None and row["tests"] is None:
            to_row(raw, source.name, source.columns)  # says what is missing
    if source.extra is not None:
        row["extra"] = {k: v for k, v in row["extra"].items() if k in source.extra}
    return row


def _check_ids(
    batch: list[_Candidate], repeats: list[Repeat | None], own_ids: HashIndex, start: int
) -> None:
    """Two problems of one source must not share the id that the data set gives them."""
    named = [place for place, item in enumerate(batch) if "id" in item.row["extra"]]
    if not named:
        return
    keys = np.array([key_of(str(batch[place].row["extra"]["id"])) for place in named], np.uint64)
    earlier = own_ids.add(keys, np.array(named, np.int64) + start)
    for place, first in zip(named, earlier.tolist(), strict=True):
        if first >= 0 and repeats[place] is None:
            item = batch[place]
            fix = "another problem of this source has the same id"
            raise InvalidInput(f"{item.where}: id", item.row["extra"]["id"], fix)


def _drawn(
    batches: Iterable[list[dict[str, Any]]], path: Path, take: int, seed: int
) -> Iterator[list[dict[str, Any]]]:
    """`take` rows by the rank of a hash of seed and id: the order of the file does not matter."""
    ranks = array("Q")
    with RowWriter(path) as spool:  # rows wait on disk until all have their rank
        for batch in batches:
            ranks.extend(key_of(f"{seed}\x1f{row['id']}") for row in batch)
            spool.write_lines(batch)
        spool.flush()
        chosen = np.zeros(len(ranks), np.bool_)
        chosen[np.argsort(np.array(ranks, np.uint64), kind="stable")[:take]] = True
        with spool.hidden.open(encoding="utf-8") as lines:
            picked = (line for line, keep in zip(lines, chosen.tolist(), strict=True) if keep)
            while batch := [json.loads(line) for line in itertools.islice(picked, BATCH)]:
                yield batch


def _check_counts(spec: DataSpec, tallies: Mapping[str, Tally], allow_fewer: bool) -> None:
    short = [
        f"{source.name} {tallies[source.name].kept:,} of {source.wanted:,}"
        for source in spec.sources
        if source.wanted is not None and tallies[source.name].kept != source.wanted
    ]
    if short and not allow_fewer:
        fix = "the data has not the rows that are asked for; --allow-fewer takes what there is"
        raise InvalidInput("rows", "; ".join(short), fix)


def _write_report(path: Path, report: Mapping[str, Any]) -> None:
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    hidden.write_text(json.dumps(json.loads(to_json(report)), indent=2) + "\n", encoding="utf-8")
    os.replace(hidden, path)
