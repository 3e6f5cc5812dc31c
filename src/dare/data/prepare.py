"""Sources to one clean file: mapped, filtered, without repeats and evaluation problems, drawn."""

from __future__ import annotations

import itertools
import json
from array import array
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from dare.data.evaluation_sets import EvaluationSets, load_sets
from dare.data.normal import key_of
from dare.data.report import Tally, local_files, report_of
from dare.data.sieve import BATCH, Progress, Sieve
from dare.data.spec import DataSpec
from dare.data.write import BESIDE, RowWriter, beside, check_out, to_json
from dare.errors import InvalidInput


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
