"""Which rows pass: in the schema, at a level that is wanted, new, and in no evaluation set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dare.data.code_prompts import with_call
from dare.data.contamination import Decontaminator, Match
from dare.data.evaluation_sets import EvaluationSets
from dare.data.hash_index import HashIndex
from dare.data.load import read_rows
from dare.data.normal import key_of, simplified, squeezed
from dare.data.repeats import Repeat, Repeats
from dare.data.report import Tally
from dare.data.row import where_is, without
from dare.data.schema import GUESSES, problem_text, text_of, to_row
from dare.data.spec import DataSpec, SourceSpec
from dare.data.write import RowWriter
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


class Sieve:
    """Lets rows through that are usable, new and in no evaluation set; remembers what it saw."""

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
            shared = _shared_ids(batch, repeats, own_ids, self._seen)
            if shared and self._spec.bad_rows == "error":
                raise next(iter(shared.values()))
            self._seen += len(batch)
            matches = self._matches(source, batch)
            left = []
            for place, (item, repeat, found) in enumerate(
                zip(batch, repeats, matches, strict=True)
            ):
                if place in shared:
                    dropped.write_lines([tally.bad(item.where, shared[place])])
                elif found:
                    dropped.write_lines([tally.contaminated(item.row, item.where, found)])
                elif repeat is not None and source.repeats == "drop":
                    dropped.write_lines([tally.repeat(item.row, item.where, repeat)])
                else:
                    left.append(item.row)
            yield left
        progress(source.name, tally.read)
        if tally.levels or tally.read == tally.bad_rows:
            return
        where = f"source {source.name}"
        if "level" in source.columns:
            fix = "no row has this column"
            raise InvalidInput(f"{where}: columns.level", source.columns["level"], fix)
        if source.levels:
            fix = "no row has a level; name its column with columns = {level: ...}"
            raise InvalidInput(f"{where}: levels", list(source.levels), fix)

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
                text = text_of(row["prompt"])
                yield _Candidate(with_call(row, raw), where_is(raw), text, simple, key)


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


def _shared_ids(
    batch: list[_Candidate], repeats: list[Repeat | None], own_ids: HashIndex, start: int
) -> dict[int, InvalidInput]:
    """Rows whose own id another problem of their source has, with the error for each."""
    named = [place for place, item in enumerate(batch) if "id" in item.row["extra"]]
    found: dict[int, InvalidInput] = {}
    if not named:
        return found
    keys = np.array([key_of(str(batch[place].row["extra"]["id"])) for place in named], np.uint64)
    earlier = own_ids.add(keys, np.array(named, np.int64) + start)
    for place, first in zip(named, earlier.tolist(), strict=True):
        if first >= 0 and repeats[place] is None:
            item = batch[place]
            fix = "another problem of this source has the same id; mend it, or name another column"
            where = f"{item.where}: id"
            found[place] = InvalidInput(where, item.row["extra"]["id"], f"{fix} of ids")
    return found
