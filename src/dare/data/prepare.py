"""Sources to one clean file: mapped, filtered, without repeats and evaluation problems, drawn; and
the report on it: counts for each source, what was dropped and why, hashes."""

from __future__ import annotations

import hashlib
import itertools
import json
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dare.data.contamination import Decontaminator, EvaluationSets, Match, load_sets
from dare.data.load import files_of, is_file, read_rows
from dare.data.repeats import HashIndex, Repeat, Repeats, key_of, simplified, squeezed
from dare.data.row import problem_text, text_of, where_is, without
from dare.data.schema import GUESSES, to_row, with_call
from dare.data.spec import DataSpec, SourceSpec
from dare.data.write import BESIDE, ENDINGS, RowWriter, beside, to_json
from dare.errors import InvalidInput
from dare.runs.files import check_out


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
    check_out(out, *ENDINGS)
    for ending in BESIDE:
        check_out(beside(out, ending))
    _check_inputs(spec, out)
    checked = any(source.by != "none" for source in spec.sources)
    sets = load_sets(spec.decontaminate if checked else (), spec.data_dir)
    sieve = Sieve(spec, sets)
    try:
        return _write(spec, sets, sieve, out, allow_fewer, progress)
    except OSError as error:  # a full disk, a folder that went away
        reason = error.strerror or str(error)
        raise InvalidInput("--out", str(out), f"could not be written: {reason}") from error


def _write(
    spec: DataSpec,
    sets: EvaluationSets,
    sieve: Sieve,
    out: Path,
    allow_fewer: bool,
    progress: Progress,
) -> dict[str, Any]:
    with ExitStack() as stack:
        writer = stack.enter_context(RowWriter(out))
        dropped = stack.enter_context(RowWriter(beside(out, ".dropped.jsonl")))
        written = stack.enter_context(RowWriter(beside(out, ".report.json")))
        for source in spec.sources:
            batches = sieve.pass_through(source, dropped, progress)
            if source.take is not None:
                drawn = _drawn(batches, beside(out, ".spool.jsonl"), source.take, spec.seed)
                batches = stack.enter_context(closing(drawn))
            for batch in batches:
                sieve.tallies[source.name].kept += len(batch)
                writer.write(batch)
        if not writer.rows:
            raise InvalidInput("data", spec.name, f"no row is left: {_lost(sieve.tallies)}")
        _check_counts(spec, sieve.tallies, allow_fewer)
        writer.finish()
        report = report_of(spec, sets, sieve.tallies, out, writer.hidden)
        written.write_text(json.dumps(json.loads(to_json(report)), indent=2) + "\n")
        written.finish()
        # All three are complete; the data comes last, so that where it is, the others are.
        for file in (dropped, written, writer):
            file.keep()
    return report


def _check_inputs(spec: DataSpec, out: Path) -> None:
    """Refuse to write over what is read."""
    outputs = [path.resolve() for path in (out, *(beside(out, ending) for ending in BESIDE))]
    sets = () if isinstance(spec.decontaminate, str) else spec.decontaminate
    words = spec.decontaminate.split(",") if isinstance(spec.decontaminate, str) else sets
    own = [word.strip() for word in words if Path(word.strip()).suffix]
    for place in [*(place for source in spec.sources for place in source.places), *own]:
        for path in local_files(place):
            if path.resolve() in outputs:
                fix = f"would replace {path}, which is read; choose another name"
                raise InvalidInput("--out", str(out), fix)


def _lost(tallies: Mapping[str, Tally]) -> str:
    """Where the rows of all sources went."""
    parts: Counter[str] = Counter()
    for tally in tallies.values():
        parts.update(tally.to_dict()["dropped"])
    return ", ".join(f"{count:,} {name}" for name, count in parts.items() if count)


def _drawn(
    batches: Iterable[list[dict[str, Any]]], path: Path, take: int, seed: int
) -> Generator[list[dict[str, Any]], None, None]:
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
        if tally.levels or tally.read == tally.dropped["bad_rows"]:
            return
        where = f"source {source.name}"
        if "level" in source.columns:
            fix = "no row has this column"
            raise InvalidInput(f"{where}: columns.level", source.columns["level"], fix)
        if source.levels:
            fix = "no row has a level; name its column (--columns level=NAME)"
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
                    tally.dropped["other_level"] += 1
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


_EXAMPLES = 5
# Why rows are dropped, by the names and in the order of the report.
_REASONS = (
    *("bad_rows", "other_level", "same_text", "same_text_after_normalisation"),
    *("evaluation_problems_by_text", "evaluation_problems_by_ngrams"),
)


@dataclass
class Tally:
    """Counts of one source; each of the methods words a dropped row."""

    name: str
    wanted: int | None
    read: int = 0
    dropped: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_REASONS, 0)))
    levels: int = 0
    conflicting_answers: int = 0
    kept: int = 0
    found: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    bad_examples: list[str] = field(default_factory=list)

    def bad(self, where: str, error: InvalidInput) -> dict[str, Any]:
        """A row that cannot be read."""
        self.dropped["bad_rows"] += 1
        if len(self.bad_examples) < _EXAMPLES:
            self.bad_examples.append(str(error))
        return {"source": self.name, "where": where, "why": "bad row", "error": str(error)}

    def repeat(self, row: Mapping[str, Any], where: str, repeat: Repeat) -> dict[str, Any]:
        """A row that was there before."""
        self.dropped["same_text" if repeat.same_text else "same_text_after_normalisation"] += 1
        self.conflicting_answers += not repeat.same_answer
        why = "same text" if repeat.same_text else "same text after normalisation"
        more = {"first_row": repeat.first + 1, "same_answer": repeat.same_answer}
        return {**_named(row, where), "why": f"repeat: {why}", **more}

    def contaminated(
        self, row: Mapping[str, Any], where: str, matches: Sequence[Match]
    ) -> dict[str, Any]:
        """A row that holds a problem of an evaluation set."""
        how = "text" if any(match.how == "text" for match in matches) else "ngrams"
        self.dropped[f"evaluation_problems_by_{how}"] += 1
        for match in matches:
            found = self.found.setdefault(match.problem.set, {"text": set(), "ngrams": set()})
            found[match.how].add(match.problem.id)
        line = {**_named(row, where), "why": "evaluation problem"}
        line["matches"] = [match.to_dict() for match in matches]
        if len(self.examples) < _EXAMPLES:
            self.examples.append(line)
        return line

    def to_dict(self) -> dict[str, Any]:
        """For the report."""
        return {
            "name": self.name,
            "read": self.read,
            "wanted": self.wanted,
            "got": self.kept,
            "dropped": {**self.dropped, "not_drawn": self.read - self.kept - self.dropped.total()},
            "repeats_with_another_answer": self.conflicting_answers,
            "evaluation_problems_found": {
                name: {how: len(ids) for how, ids in found.items()}
                for name, found in self.found.items()
            },
            "bad_row_examples": self.bad_examples,
        }


def report_of(
    spec: DataSpec, sets: EvaluationSets, tallies: Mapping[str, Tally], out: Path, written: Path
) -> dict[str, Any]:
    """The whole report; `written` is where the rows of `out` are until it is complete."""
    from dare import __version__

    sources = []
    for source in spec.sources:
        files = [path for place in source.places for path in local_files(place)]
        more = {"from": [_place(place) for place in source.places], "sha256": _hashes(files)}
        sources.append({**tallies[source.name].to_dict(), **more})
    wanted = [source.wanted for source in spec.sources]
    total = sum(number or 0 for number in wanted)
    return {
        "recipe": spec.name,
        "out": out.name,
        "rows": sum(tally.kept for tally in tallies.values()),
        "wanted": None if None in wanted else total,
        "seed": spec.seed,
        "sha256": _hashes([written])[str(written)],
        "sources": sources,
        "decontamination": {
            "ngram": spec.ngram,
            "share": spec.share,
            "sets": {
                name: {"problems": count, "from": sets.sources[name]}
                for name, count in sets.counts.items()
            },
            "not_checked": sets.missing,
        },
        "examples": [line for tally in tallies.values() for line in tally.examples],
        "dare": __version__,
    }


def _named(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    own = row["extra"].get("id")
    found = {"source": row["source"], "where": where, "id": row["id"]}
    shown = problem_text(row["prompt"])[:300]
    return {**found, **({} if own is None else {"own_id": own}), "prompt": shown}


def _place(place: Any) -> str:
    if isinstance(place, Mapping):
        return " ".join(str(value) for key, value in place.items() if key != "columns" and value)
    return str(place) if isinstance(place, str | Path) else type(place).__name__


def local_files(place: Any) -> list[Path]:
    """The files on this machine that a place names."""
    path = place.get("path") if isinstance(place, Mapping) else place
    if not isinstance(path, str | Path) or not is_file(path) or "://" in str(path):
        return []
    return files_of(path)


def _hashes(files: Sequence[Path]) -> dict[str, str]:
    found = {}
    for path in files:
        with path.open("rb") as file:
            found[str(path)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
