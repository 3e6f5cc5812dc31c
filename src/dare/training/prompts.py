"""Data set rows as prompts: texts, columns for rewards, and token ids under each conditioning."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np

from dare.curriculum.prompts import TEST_COLUMNS, PromptTable
from dare.curriculum.rollouts import Conditioning
from dare.data.row import blank, encodable, text_of
from dare.errors import InvalidInput, require
from dare.templates import Message, load_template, template_of
from dare.templates.encode import encode
from dare_decoder.batching import IntArray
from dare_verify.math.extract import boxed_answer, marked_answer

_LOG = logging.getLogger(__name__)
_SHORT, _WORDS = 80, 12  # characters and words of a gold answer, at most
_NONE = ("nan", "<na>", "nat")  # what others write for a value that is none
_AROUND = len("$$\\boxed{}$$")


class PromptStore:
    """The prompt table with what the policy and the rewards need of each row.

    `prompt` is a string or a list of messages. Other columns go to the reward functions as they
    are; `answer`, `tests`, `level` and `source` are used by the curriculum too where present.
    Repeated prompts are merged, which is told; `judged_by` names columns that rewards read, so that
    repeats which disagree on one of them are told of too.
    """

    def __init__(
        self,
        dataset: Iterable[Mapping[str, Any]],
        tokenizer: Any,
        system_prompt: str | None = None,
        field: str = "train_dataset",
        judged_by: Iterable[str] = (),
    ) -> None:
        self._tokenizer, self.template = tokenizer, template_of(system_prompt)
        self.field = field
        records = _rows_of(dataset, field)
        # Of all rows: the first one, in the data or by id, may lack some.
        present = dict.fromkeys(name for row in records for name in row)
        if "prompt" not in present:
            columns = ", ".join(sorted(present))
            fix = f"rename one of its columns ({columns}) to 'prompt'"
            raise InvalidInput(field, "no column 'prompt'", fix)
        for name in ("image", "images"):
            fix = "prompts are text only; drop the column, or rename it if rewards alone read it"
            require(name not in present, field, f"column {name!r}", fix)
        self.had_answers = answered = "answer" in present
        for place, row in enumerate(records):  # before anything reads them as texts
            _check_texts(row, f"{field}[{place}]")
        self.solutions = what_solutions_are(records)
        if self.solutions == "gold":
            for row in records:
                if "answer" not in row:
                    row["answer"] = _bare(row.get("solution"))
            present["answer"] = None
        texts = [_checked(row, f"{field}[{place}]", answered) for place, row in enumerate(records)]
        self.table = PromptTable.from_records(
            {**row, "prompt": text} for row, text in zip(records, texts, strict=True)
        )
        self.names = [name for name in present if name != "prompt"]
        """Its columns beside the prompt, in their order."""
        self.lacks = _fill(records, self.names)
        """For each column that rows lack, the first of these."""
        kept = self.table.dataset_row_P.tolist()
        self.records = [records[row] for row in kept]
        if self.table.report.duplicates:
            names = {"answer", *judged_by} - {"prompt", "level", "source"}
            _tell_of_repeats(field, records, texts, set(kept), sorted(names))
        self._tokens: dict[int, IntArray] = {}
        self._solutions: dict[int, np.ndarray[Any, Any]] = {}
        self._digits: dict[int, bool] = {}

    def __len__(self) -> int:
        return len(self.records)

    def columns(self, rows: Iterable[int]) -> dict[str, list[Any]]:
        """Every column but the prompt for these rows, as reward functions take them."""
        picked = [self.records[row] for row in rows]
        return {name: [record[name] for record in picked] for name in self.names}

    def messages(self, row: int, conditioning: int, fragments: list[str]) -> list[Message]:
        """The conversation that the policy is shown."""
        template = self.template
        if self.table.judged_by_tests(row):  # whatever the system prompt: no box is asked for
            template = replace(template, hint=load_template("code").hint)
        return template.messages(
            self.records[row]["prompt"],
            think_longer=conditioning == Conditioning.THINK_LONGER,
            fragments=fragments if conditioning == Conditioning.HINTED else None,
        )

    def tokens(
        self, row: int, conditioning: int = Conditioning.PLAIN, fragments: list[str] | None = None
    ) -> IntArray:
        """Token ids up to where the response begins; plain ones are remembered."""
        if conditioning == Conditioning.PLAIN:
            if row not in self._tokens:
                self._tokens[row] = self.encode(self.messages(row, conditioning, []))
            return self._tokens[row]
        return self.encode(self.messages(row, conditioning, fragments or []))

    @cached_property
    def lengths(self) -> IntArray:
        """Tokens of every plain prompt."""
        return np.array([len(self.tokens(row)) for row in range(len(self))], dtype=np.int64)

    @property
    def has_solutions(self) -> bool:
        """Whether any row has a worked reference solution."""
        return self.solutions == "worked"

    def say_what_solutions_are(self) -> None:
        """In TRL's data sets `solution` is mostly the gold answer, here it is a worked one."""
        taken = {
            "gold": "gold answers: `answer` has them too, and no estimate reads them. If they are "
            "worked solutions, add a column 'answer'",
            "worked": "worked solutions, which the estimate of difficulty reads. If they are gold "
            "answers, rename the column to 'answer'",
        }
        if self.solutions and not self.had_answers:
            _LOG.warning("column 'solution' is taken for %s", taken[self.solutions])

    def solution(self, row: int) -> IntArray:
        """Token ids of the reference solution and the end of a response; empty without one."""
        if row not in self._solutions:  # read again and again during a run; halved in memory
            self._solutions[row] = self._encode_solution(row).astype(np.int32)
        return self._solutions[row].astype(np.int64)

    def holds_digit(self, ids: IntArray) -> np.ndarray[Any, Any]:
        """Which of these tokens have a digit in their text; special tokens never do."""
        kinds, place = np.unique(ids, return_inverse=True)
        for token in kinds.tolist():
            if token not in self._digits:
                text = self._tokenizer.decode([token], skip_special_tokens=True)
                self._digits[token] = any(letter.isdigit() for letter in text)
        return np.array([self._digits[token] for token in kinds.tolist()], bool)[place]

    def _encode_solution(self, row: int) -> IntArray:
        text = self.records[row].get("solution") if self.has_solutions else None
        if not isinstance(text, str) or not text.strip():
            return np.empty(0, np.int64)
        ids = self._tokenizer(text.strip(), add_special_tokens=False)["input_ids"]
        end = self._tokenizer.eos_token_id
        return np.asarray(ids if end is None else [*ids, end], dtype=np.int64)

    def decode(self, tokens: Any) -> str:
        """The text of a response."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def encode(self, messages: list[Message]) -> IntArray:
        """Token ids of a conversation; see `dare.templates.encode`."""
        return encode(self._tokenizer, messages)

    def encode_prompt(self, prompt: str) -> IntArray:
        """Token ids of a prompt that need not be in the table, as if it were."""
        return self.encode(self.template.messages(prompt))

    def check_lengths(self, context: int, max_tokens: int) -> None:
        """Every plain prompt must have tokens and leave room for a full response."""
        for row, place in enumerate(self.table.dataset_row_P.tolist()):
            where, prompt = f"{self.field}[{place}]['prompt']", self.records[row]["prompt"]
            size = len(self.tokens(row))
            fix = "has no tokens, so there is nothing to respond to; drop the row"
            require(size, where, prompt, fix)
            fix = (
                f"{size} tokens and a response of {max_tokens} exceed the context of {context}; "
                "drop the row or lower max_completion_length"
            )
            require(size + max_tokens <= context, where, prompt, fix)


def what_solutions_are(records: Sequence[Mapping[str, Any]]) -> str:
    """The column `solution`: `gold` answers, as in many data sets for TRL, `worked` ones, or ``.

    Most of the rows decide. With a column `answer` a gold one repeats it; without, it is short.
    """
    rows = [row for row in records if isinstance(row.get("solution"), str)]
    if not rows:
        return ""
    gold = 0
    for row in rows:
        text = row["solution"].strip()
        if row.get("answer") is None:
            gold += "\n" not in text and len(text) <= _SHORT and len(text.split()) <= _WORDS
        else:
            told = _bare(row["answer"]) or ""
            # A short worked solution ends in the answer too: nothing but signs may be around it.
            gold += len(text) <= len(told) + _AROUND and _bare(text) == told
    return "gold" if 2 * gold > len(rows) else "worked"


def _bare(answer: Any) -> str | None:
    """An answer without the signs of LaTeX around it."""
    if answer is None:
        return None
    text = str(answer).strip()
    text = boxed_answer(text) or marked_answer(text) or text
    return text.strip().strip("$").removeprefix("\\(").removesuffix("\\)").strip()


def _rows_of(dataset: Any, field: str) -> list[dict[str, Any]]:
    """The rows of whatever was given as a data set."""
    kind = type(dataset).__name__
    fix = "give a datasets.Dataset or another iterable of rows, each a mapping by column"
    if isinstance(dataset, Mapping):
        fix = (
            "holds splits or columns, not rows: choose one split (data['train']), or make rows of "
        )
        fix += "columns with datasets.Dataset.from_dict"
        raise InvalidInput(field, kind, fix)
    if isinstance(dataset, str | bytes) or not isinstance(dataset, Iterable):
        raise InvalidInput(field, dataset, fix)
    more = "; of a table of pandas take .to_dict('records')" if hasattr(dataset, "columns") else ""
    rows: list[dict[str, Any]] = []
    try:
        for place, row in enumerate(dataset):
            known = isinstance(row, Mapping) and all(isinstance(name, str) for name in row)
            fix = f"must be a mapping with a name a column{more}"
            require(known, f"{field}[{place}]", row, fix)
            rows.append(dict(row))
    except (KeyboardInterrupt, InvalidInput):
        raise
    except BaseException as error:  # of whatever it is read from; sys.exit() would look like an end
        fix = f"cannot be read ({_told(error)})"
        raise InvalidInput(f"{field}[{len(rows)}]", kind, fix) from error
    require(rows, field, 0, "has no rows")
    return rows


def _fill(records: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, int]:
    """Give every row every column, as rewards are called with whole ones; returns the first row
    that lacked each. One whose truth is an answer needs no tests, nor the other way round."""
    lacks: dict[str, int] = {}
    for place, row in enumerate(records):
        absent = [name for name in names if name not in row]
        for name in absent:
            others = TEST_COLUMNS if name == "answer" else ("answer",)
            either = name == "answer" or name in TEST_COLUMNS
            if not (either and any(row.get(other) is not None for other in others)):
                lacks.setdefault(name, place)
        row.update(dict.fromkeys(absent))
    return lacks


def _check_texts(row: Mapping[str, Any], where: str) -> None:
    """What is read as text can be: an object of a user's may refuse, in whatever way."""
    for name in ("answer", "level", "source", "solution"):
        value = row.get(name)
        if value is None or (name == "solution" and not isinstance(value, str)):
            continue  # a solution that is no text is not read
        with _reading(f"{where}[{name!r}]", value):
            encodable(str(value), f"{where}[{name!r}]")


@contextmanager
def _reading(where: str, value: Any) -> Iterator[None]:
    """Whatever an object of the data raises names its row; sys.exit() would end the script as if
    it were done."""
    try:
        yield
    except (KeyboardInterrupt, InvalidInput):
        raise
    except BaseException as error:
        raise InvalidInput(
            where, type(value).__name__, f"cannot be read ({_told(error)})"
        ) from error


def _told(error: BaseException) -> str:
    """An error in a line; one of a user's may not know how to show itself."""
    try:
        return " ".join(repr(error).split())
    except KeyboardInterrupt:
        raise
    except BaseException:
        return type(error).__name__


def _checked(row: Mapping[str, Any], where: str, answered: bool) -> str:
    """What identifies the prompt of a row: its text, or its messages in a canonical form."""
    value = row.get("answer")
    with _reading(f"{where}['tests']", row.get("tests")):
        tested = bool(row.get("tests"))
    # Without one, tests may be the truth: a program's row among those with answers.
    if answered and not (value is None and tested):
        with _reading(f"{where}['answer']", value):
            missing = _is_missing(value)
        fix = "every row needs an answer that can be right; drop the row or fill it in"
        require(not missing, f"{where}['answer']", value, fix)
    with _reading(f"{where}['prompt']", row.get("prompt")):
        return _checked_prompt(row.get("prompt"), f"{where}['prompt']")


def _checked_prompt(prompt: Any, where: str) -> str:
    """The same of its prompt alone."""
    if isinstance(prompt, str):
        require(not blank(encodable(prompt, where)), where, prompt, "has no words; drop the row")
        return prompt
    turns = prompt if isinstance(prompt, list) else []
    fits = [
        isinstance(turn, Mapping) and all(isinstance(turn.get(k), str) for k in ("role", "content"))
        for turn in turns
    ]
    fix = "must be a string or a list of messages with 'role' and 'content', both strings"
    require(fits and all(fits), where, prompt, fix)
    spoken = any(not blank(turn["content"]) for turn in turns) and all(t["role"] for t in turns)
    require(spoken, where, prompt, "has no words, or nobody who says them; drop the row")
    for turn in turns:
        encodable(turn["role"] + turn["content"], where)
    return text_of(turns)


def called(field: str) -> str:
    """A data set in a sentence: a recipe calls it `data`, a script `train_dataset`."""
    field = field.replace("train_", "training ").replace("eval_", "evaluation ")
    return field.replace("dataset", "data")


def _tell_of_repeats(
    field: str,
    records: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    kept: set[int],
    names: Sequence[str],
) -> None:
    """A line for rows that were merged, and one for those that disagree on a column of `names`."""
    given, field = field, called(field)
    merged = f"{field}: {len(records):,} rows have {len(kept):,} prompts; repeats are merged"
    _LOG.warning("%s", merged)
    keys = [(str(row.get("source") or ""), text) for row, text in zip(records, texts, strict=True)]
    row_of = {keys[place]: place for place in kept}
    found = list[str]()
    for place, row in enumerate(records):
        counts = row_of[keys[place]]
        for name in names if counts != place else ():
            with _reading(f"{given}[{place}][{name!r}]", row.get(name)):
                differs = _bare(row.get(name)) != _bare(records[counts].get(name))
            if differs:
                found.append(f"row {place} has another {name} than row {counts}, which counts")
                break
    if found:
        more = f", and {len(found) - 3:,} more" if len(found) > 3 else ""
        told = f"{field}: one prompt, several answers: {'; '.join(found[:3])}{more}"
        _LOG.warning("%s (rows count from 0); drop the wrong ones", told)


def _is_missing(value: Any) -> bool:
    """Whether an answer is what pandas, NumPy and others have for none, holds nothing, or is
    something that no response can say."""
    if isinstance(value, str):
        return blank(value)
    if hasattr(value, "tolist"):  # of NumPy and torch
        value = value.tolist()
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        inside = list(value.values() if isinstance(value, Mapping) else value)
        return all(map(_is_missing, inside))
    if value is None or callable(value):
        return True
    if isinstance(value, Decimal):
        return not value.is_finite()
    if isinstance(value, float):
        return not math.isfinite(value)
    text = str(value)
    empty = isinstance(value, Sized) and len(value) == 0
    return empty or blank(text) or text.lower() in _NONE
