"""What a preparation did: counts for each source, what was dropped and why, hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare.data.contamination import EvaluationSets, Match
from dare.data.load import files_of, is_file
from dare.data.repeats import Repeat
from dare.data.row import problem_text
from dare.data.spec import DataSpec
from dare.errors import InvalidInput

_EXAMPLES = 5


@dataclass
class Tally:
    """Counts of one source; each of the methods words a dropped row."""

    name: str
    wanted: int | None
    read: int = 0
    bad_rows: int = 0
    other_level: int = 0
    levels: int = 0
    same_text: int = 0
    same_normalised: int = 0
    conflicting_answers: int = 0
    evaluation_text: int = 0
    evaluation_ngrams: int = 0
    kept: int = 0
    found: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    bad_examples: list[str] = field(default_factory=list)

    def bad(self, where: str, error: InvalidInput) -> dict[str, Any]:
        """A row that cannot be read."""
        self.bad_rows += 1
        if len(self.bad_examples) < _EXAMPLES:
            self.bad_examples.append(str(error))
        return {"source": self.name, "where": where, "why": "bad row", "error": str(error)}

    def repeat(self, row: Mapping[str, Any], where: str, repeat: Repeat) -> dict[str, Any]:
        """A row that was there before."""
        if repeat.same_text:
            self.same_text += 1
        else:
            self.same_normalised += 1
        self.conflicting_answers += not repeat.same_answer
        why = "same text" if repeat.same_text else "same text after normalisation"
        more = {"first_row": repeat.first + 1, "same_answer": repeat.same_answer}
        return {**_named(row, where), "why": f"repeat: {why}", **more}

    def contaminated(
        self, row: Mapping[str, Any], where: str, matches: Sequence[Match]
    ) -> dict[str, Any]:
        """A row that holds a problem of an evaluation set."""
        by_text = any(match.how == "text" for match in matches)
        self.evaluation_text += by_text
        self.evaluation_ngrams += not by_text
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
            "dropped": {
                "bad_rows": self.bad_rows,
                "other_level": self.other_level,
                "same_text": self.same_text,
                "same_text_after_normalisation": self.same_normalised,
                "evaluation_problems_by_text": self.evaluation_text,
                "evaluation_problems_by_ngrams": self.evaluation_ngrams,
                "not_drawn": self.read - self.kept - self._dropped,
            },
            "repeats_with_another_answer": self.conflicting_answers,
            "evaluation_problems_found": {
                name: {how: len(ids) for how, ids in found.items()}
                for name, found in self.found.items()
            },
            "bad_row_examples": self.bad_examples,
        }

    @property
    def _dropped(self) -> int:
        repeats = self.same_text + self.same_normalised
        evaluation = self.evaluation_text + self.evaluation_ngrams
        return self.bad_rows + self.other_level + repeats + evaluation


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
    return {**found, **({} if own is None else {"own_id": own}), "prompt": _start(row)}


def _start(row: Mapping[str, Any]) -> str:
    return problem_text(row["prompt"])[:300]


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
