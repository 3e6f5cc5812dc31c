"""The prompt table: stable ids, sources, levels, answers and tests (METHOD 1)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, to_numpy
from dare.errors import InvalidInput, require

TEST_COLUMNS = ("tests", "input_output", "test_list", "test_cases", "test")
"""Where data sets keep the tests of a programming problem."""


def prompt_id(source: str, text: str) -> str:
    """Stable id of a prompt: 16 hex digits of a hash of its source and text."""
    return f"{_key(source, text):016x}"


def _key(source: str, text: str) -> int:
    # A separator that source names cannot contain keeps ("a", "bc") apart from ("ab", "c").
    message = f"{source}\x1f{text}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(message, digest_size=8).digest(), "big")


@dataclass(frozen=True)
class MergeReport:
    """What happened to repeated prompts when a table was built."""

    rows: int
    prompts: int
    conflicting_answers: tuple[str, ...] = ()

    @property
    def duplicates(self) -> int:
        """Rows that repeated an earlier prompt of the same source."""
        return self.rows - self.prompts


@dataclass(frozen=True)
class PromptTable:
    """All training prompts, one row each, sorted by id.

    The order of rows is that of the ids and not of the data set: reordering or merging files
    changes neither the ids nor, therefore, any draw. `dataset_row_P` leads back to the input.
    """

    key_P: Array
    source_P: Array
    level_P: Array
    sources: tuple[str, ...]
    levels: tuple[str, ...]
    answers: tuple[str | None, ...] | None = None
    texts: tuple[str, ...] | None = None
    tests_P: Array | None = None
    """True where the row has tests (see `judged_by_tests`)."""
    dataset_row_P: Array = field(default_factory=lambda: np.empty(0, np.int64))
    report: MergeReport = MergeReport(0, 0)

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> PromptTable:
        """Build from rows. Repeats are merged, the first kept.

        A row has tests where one of TEST_COLUMNS holds a text, a list or a mapping of some.
        """
        texts: list[str] = []
        sources: list[str] = []
        levels: list[str] = []
        answers: list[str | None] = []
        tested: list[bool] = []
        for row, record in enumerate(records):
            value = record.get("prompt")
            if not isinstance(value, str) or not value.strip():
                fix = f"row {row} needs a non-empty string there"
                raise InvalidInput("column 'prompt'", value, fix)
            texts.append(value)
            sources.append(str(record.get("source") or "data"))
            level, answer = record.get("level"), record.get("answer")
            levels.append("" if level is None else str(level))
            answers.append(None if answer is None else str(answer))
            tested.append(any(_holds_tests(record.get(name)) for name in TEST_COLUMNS))
        return cls.from_columns(
            texts, sources=sources, levels=levels, answers=answers, tests=tested
        )

    @classmethod
    def from_columns(
        cls,
        texts: Sequence[str],
        *,
        sources: Sequence[str] | str = "data",
        levels: Sequence[str] | None = None,
        answers: Sequence[str | None] | None = None,
        tests: Sequence[bool] | None = None,
    ) -> PromptTable:
        """Build from parallel columns (see `from_records`); `tests` says which rows have some."""
        count = len(texts)
        require(count, "prompts", count, "give at least one prompt")
        source_list = [sources] * count if isinstance(sources, str) else list(sources)
        level_list = [""] * count if levels is None else list(levels)
        answer_list = [None] * count if answers is None else list(answers)
        test_list = [False] * count if tests is None else list(tests)
        columns: dict[str, list[Any]] = {
            "sources": source_list,
            "levels": level_list,
            "answers": answer_list,
            "tests": test_list,
        }
        for name, column in columns.items():
            require(len(column) == count, name, len(column), f"must have {count} entries")
        keys = np.fromiter(map(_key, source_list, texts), dtype=np.uint64, count=count)
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        first, conflicts = _merge_repeats(
            inverse.reshape(-1), first, texts, source_list, level_list, answer_list
        )
        tested = np.zeros(len(distinct), bool)
        np.logical_or.at(tested, inverse.reshape(-1), test_list)  # of any repeat
        source_names, source_codes = np.unique(np.array(source_list), return_inverse=True)
        level_names, level_codes = np.unique(np.array(level_list), return_inverse=True)
        return cls(
            key_P=distinct,
            source_P=source_codes.reshape(-1)[first].astype(np.int32),
            level_P=level_codes.reshape(-1)[first].astype(np.int32),
            sources=tuple(str(name) for name in source_names),
            levels=tuple(str(name) for name in level_names),
            answers=tuple(answer_list[row] for row in first),
            texts=tuple(texts[row] for row in first),
            tests_P=tested,
            dataset_row_P=first.astype(np.int64),
            report=MergeReport(
                count, len(distinct), tuple(f"{int(distinct[place]):016x}" for place in conflicts)
            ),
        )

    @classmethod
    def from_keys(cls, keys: Any, *, levels: Any = None) -> PromptTable:
        """A table without texts, from 64-bit keys: for simulations of very many prompts."""
        key = to_numpy(keys, np.uint64, "keys").reshape(-1)
        distinct, first = np.unique(key, return_index=True)
        require(len(key), "keys", len(key), "give at least one prompt")
        require(len(distinct) == len(key), "keys", len(key), "must not repeat")
        codes = np.zeros(len(key), np.int32) if levels is None else np.asarray(levels, np.int32)
        names = tuple(str(level) for level in range(int(codes.max()) + 1))
        return cls(
            key_P=distinct,
            source_P=np.zeros(len(key), np.int32),
            level_P=codes[first],
            sources=("simulation",),
            levels=names,
            dataset_row_P=first.astype(np.int64),
            report=MergeReport(len(key), len(key)),
        )

    def __len__(self) -> int:
        return len(self.key_P)

    def ids(self, rows: Any = None) -> list[str]:
        """Ids of these rows (default: all)."""
        keys = self.key_P if rows is None else self.key_P[rows]
        return [f"{key:016x}" for key in keys.tolist()]

    def rows(self, ids: Iterable[str]) -> Array:
        """Rows of these ids; an unknown id is an error."""
        wanted = list(ids)
        try:
            keys = np.array([int(name, 16) for name in wanted], dtype=np.uint64)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput("prompt id", wanted[:3], "ids are 16 hex digits") from error
        rows = np.minimum(np.searchsorted(self.key_P, keys), len(self) - 1)
        unknown = self.key_P[rows] != keys
        if unknown.any():
            name = wanted[int(np.flatnonzero(unknown)[0])]
            fix = "is not in the prompt table; was the data changed?"
            raise InvalidInput("prompt id", name, fix)
        return rows

    def judged_by_tests(self, row: int) -> bool:
        """Whether the truth of a prompt is tests: it has some, and no answer beside them."""
        tested = self.tests_P is not None and bool(self.tests_P[row])
        return tested and not (self.answers is not None and self.answers[row])

    def check_rows(self, rows: Array) -> None:
        """Refuse rows outside the table."""
        outside = (rows < 0) | (rows >= len(self))
        if outside.any():
            bad = int(rows[outside][0])
            raise InvalidInput("prompt row", bad, f"the prompt table has rows 0 to {len(self) - 1}")


def _holds_tests(value: Any) -> bool:
    return isinstance(value, str | Sequence | Mapping) and len(value) > 0


def _merge_repeats(
    inverse: Array,
    first: Array,
    texts: Sequence[str],
    sources: Sequence[str],
    levels: Sequence[str],
    answers: Sequence[str | None],
) -> tuple[Array, list[int]]:
    """The row kept for each distinct prompt, and which prompts' repeats disagree on the answer.

    The kept row is the least by (answer, level), not the first: where repeats disagree, the order
    of the file must not decide. Two different prompts under one id are refused.
    """

    def rank(row: int) -> tuple[bool, str, str]:
        return answers[row] is None, answers[row] or "", levels[row]

    kept = first.copy()
    conflicts: dict[int, None] = {}
    for row in np.flatnonzero(first[inverse] != np.arange(len(inverse))).tolist():
        place = int(inverse[row])
        other = int(first[place])
        if (sources[row], texts[row]) != (sources[other], texts[other]):
            pair = (texts[other][:40], texts[row][:40])
            raise InvalidInput("prompt id", pair, "two prompts share a hash; rename one's source")
        if answers[row] != answers[other]:
            conflicts[place] = None
        kept[place] = min(int(kept[place]), row, key=rank)
    return kept, sorted(conflicts)
