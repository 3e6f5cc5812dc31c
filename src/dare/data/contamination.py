"""Which training rows are problems of an evaluation set: by normalised text and by n-grams.

The n-gram rule: a row holds an evaluation problem when it has at least half (`share`) of the
problem's word 8-grams and all of its numbers. A problem with fewer than 12 n-grams must be there
whole: half of a short problem is a figure of speech. Numbers keep siblings apart that a textbook
makes from one template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dare.data.load import files_of, read_rows, shipped_benchmarks
from dare.data.repeats import key_of, normal_form, simplified, squeezed, words, words_of
from dare.data.row import own_id, problem_text, where_is
from dare.data.schema import to_row
from dare.errors import InvalidInput, require, suggest

N = 8
SHARE = 0.5
_SHORT = 12  # n-grams below which all of them must be found
_HIGH = np.uint64(42)  # the 22 bits above these are the place in a table of all n-grams
_WIDE = 1 << 31  # packs two numbers into one
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Problem:
    """A problem of an evaluation set."""

    set: str
    id: str
    text: str


@dataclass(frozen=True)
class Match:
    """An evaluation problem that a row holds, and how that was seen."""

    problem: Problem
    how: str  # "text" or "ngrams"
    share: float

    def to_dict(self) -> dict[str, Any]:
        """For reports."""
        found = {"set": self.problem.set, "id": self.problem.id, "how": self.how}
        return {**found, "share": round(self.share, 3), "problem": self.problem.text[:300]}


class Decontaminator:
    """Finds evaluation problems in batches of texts; holds the problems and their n-grams."""

    def __init__(self, problems: Iterable[Problem], *, n: int = N, share: float = SHARE) -> None:
        require(n >= 2, "ngram", n, "must be at least 2")
        require(0 < share <= 1, "share", share, "must be above 0 and at most 1")
        self.problems, self.n, self.share = list(problems), n, share
        self._by_text: dict[int, list[int]] = {}
        for place, problem in enumerate(self.problems):
            self._by_text.setdefault(key_of(normal_form(problem.text)), []).append(place)
        self._words: dict[str, int] = {}
        rows = [words(problem.text) for problem in self.problems]
        for word in {word for row in rows for word in row}:
            self._words[word] = key_of(word) | 1  # never 0, which stands for other words
        grams, owner = self._grams(rows)
        pairs = np.unique(np.stack([grams, owner.astype(np.uint64)], axis=1), axis=0)
        self._size_E = np.bincount(pairs[:, 1].astype(np.int64), minlength=len(self.problems))
        self._gram_G, first = np.unique(pairs[:, 0], return_index=True)
        self._first_G = np.append(first, len(pairs))
        self._owner = pairs[:, 1].astype(np.int64)
        self._near = np.zeros(1 << (64 - int(_HIGH)), np.bool_)
        self._near[self._gram_G >> _HIGH] = True
        self._need_E = np.where(self._size_E < _SHORT, 1.0, share)
        self._numbers = [Counter(filter(str.isdigit, row)) for row in rows]

    def match(self, texts: Sequence[str], *, ngrams: bool = True) -> list[list[Match]]:
        """The evaluation problems that each text holds."""
        simple = [simplified(text) for text in texts]
        return self.match_simplified(simple, [key_of(squeezed(text)) for text in simple], ngrams)

    def match_simplified(
        self, simple: Sequence[str], keys: Sequence[int], ngrams: bool
    ) -> list[list[Match]]:
        """The same for texts whose simplified form and key are known."""
        found: list[list[Match]] = []
        for key in keys:
            places = self._by_text.get(key, ())
            found.append([Match(self.problems[place], "text", 1.0) for place in places])
        if not ngrams or not len(self._gram_G):
            return found
        rows = [words_of(text) for text in simple]
        for row, place, share in self._shared(rows):
            known = any(match.problem is self.problems[place] for match in found[row])
            if not known and self._numbers[place] <= Counter(filter(str.isdigit, rows[row])):
                found[row].append(Match(self.problems[place], "ngrams", share))
        return found

    def _shared(self, rows: Sequence[Sequence[str]]) -> list[tuple[int, int, float]]:
        """(row, problem, share of the problem's n-grams) where the share is enough."""
        grams, owner = self._grams(rows)
        near = self._near[
            grams >> _HIGH
        ]  # few n-grams are anywhere: a table is faster than a search
        grams, owner = grams[near], owner[near]
        place = np.minimum(np.searchsorted(self._gram_G, grams), len(self._gram_G) - 1)
        hit = self._gram_G[place] == grams
        pairs = np.unique(owner[hit] * _WIDE + place[hit])  # an n-gram counts once a row
        gram = pairs % _WIDE
        count = self._first_G[gram + 1] - self._first_G[gram]
        row = np.repeat(pairs // _WIDE, count)
        # The problems of each n-gram lie side by side: count on from the first of them.
        step = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        problem = self._owner[np.repeat(self._first_G[gram], count) + step]
        both, shared = np.unique(row * _WIDE + problem, return_counts=True)
        place = both % _WIDE
        share = shared / self._size_E[place]
        enough = share >= self._need_E[place]
        found = zip(both[enough] // _WIDE, place[enough], share[enough], strict=True)
        return [(int(row), int(problem), float(part)) for row, problem, part in found]

    def _grams(self, rows: Sequence[Sequence[str]]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Hashes of all n-grams of known words, and the row of each."""
        get = self._words.get
        flat = [get(word, 0) for row in rows for word in row]
        token = np.array(flat, dtype=np.uint64)
        owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        count = len(token) - self.n + 1
        if count <= 0:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        value = np.zeros(count, np.uint64)
        for shift in range(self.n):
            value = (value ^ token[shift : shift + count]) * _MIX
            value ^= value >> np.uint64(29)
        unknown = np.concatenate([[0], np.cumsum(token == 0)])
        inside = owner[:count] == owner[self.n - 1 :]
        known = unknown[self.n :] == unknown[:count]
        good = inside & known
        return value[good], owner[:count][good]


@dataclass
class EvaluationSets:
    """Problems to keep out of the training data, with where each set came from."""

    problems: list[Problem] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def evaluation_sets() -> dict[str, dict[str, Any]]:
    """The benchmarks that training data is checked against: `hub` and `file` by name."""
    parts = [part for item in shipped_benchmarks().values() for part in item["parts"]]
    found = {}
    for part in parts:
        wider = part.get("keep_out")
        if wider is not None:
            wider = wider if isinstance(wider, dict) else {"name": wider}
            found[str(wider["name"])] = {**part, **wider}
    return found


def load_sets(names: str | Iterable[str], data_dir: Path | None = None) -> EvaluationSets:
    """Sets by name ("all" for every one), or files of your own problems.

    A set of `all` that has no local copy is named in `missing`; one that was asked for must be
    there.
    """
    everything = names == "all"
    wanted = list(evaluation_sets()) if everything else _split(names)
    found = EvaluationSets()
    for name in wanted:
        source = _source(name, data_dir)
        if source is None:
            if not everything:
                raise InvalidInput("decontaminate", name, f"has no local copy in {data_dir}")
            found.missing.append(name)
            continue
        before = len(found.problems)
        try:
            found.problems += _problems(name, source)
        except InvalidInput as error:
            if not isinstance(source, dict):
                raise
            fix = (
                f"cannot be had from the hub ({error}); give local copies with --data-dir DIR, "
                "or skip the check with --decontaminate none"
            )
            raise InvalidInput("decontaminate", name, fix) from None
        found.counts[name] = len(found.problems) - before
        found.sources[name] = str(source["path"] if isinstance(source, dict) else source)
    return found


def _split(names: str | Iterable[str]) -> list[str]:
    words = names.split(",") if isinstance(names, str) else list(names)
    return [word.strip() for word in words if word.strip() and word.strip() != "none"]


def _source(name: str, data_dir: Path | None) -> dict[str, Any] | str | None:
    """What to read for a set; None where a local copy is wanted and absent."""
    if Path(name).suffix:
        return name  # a file of the user's
    known = evaluation_sets()
    if name not in known:
        fix = f"is no evaluation set; {suggest(name, known)}"
        raise InvalidInput("decontaminate", name, fix)
    if data_dir is None:
        return dict(known[name]["hub"])
    pattern = str(data_dir / f"{known[name]['file']}*")
    try:
        files_of(pattern)
    except InvalidInput:
        return None
    return pattern


def _problems(name: str, source: Any) -> Iterator[Problem]:
    for number, raw in enumerate(read_rows(source), start=1):
        row = to_row(raw, name, need_answer=False)
        own = own_id(raw)
        where = where_is(raw) if own is None else own
        yield Problem(name, str(where or number), problem_text(row["prompt"]))
