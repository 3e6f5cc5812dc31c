"""Data set rows as prompts: texts, columns for rewards, and token ids under each conditioning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dare.curriculum.prompts import PromptTable
from dare.curriculum.rollouts import Conditioning
from dare.errors import InvalidInput
from dare.policy.batching import IntArray
from dare.rewards.math.extract import boxed_answer, marked_answer
from dare.templates import Message, load_template, template_of
from dare.templates.encode import encode

_SHORT, _WORDS = 80, 12  # characters and words of a gold answer, at most


class PromptStore:
    """The prompt table with what the policy and the rewards need of each row.

    `prompt` is a string or a list of messages. Other columns go to the reward functions as they
    are; `answer`, `tests`, `level` and `source` are used by the curriculum too where present.
    """

    def __init__(
        self, dataset: Iterable[Mapping[str, Any]], tokenizer: Any, system_prompt: str | None = None
    ) -> None:
        self._tokenizer, self.template = tokenizer, template_of(system_prompt)
        records = [dict(row) for row in dataset]
        if not records:
            raise InvalidInput("train_dataset", 0, "has no rows")
        if "prompt" not in records[0]:
            columns = ", ".join(sorted(records[0]))
            fix = f"rename one of its columns ({columns}) to 'prompt'"
            raise InvalidInput("train_dataset", "no column 'prompt'", fix)
        for name in ("image", "images"):
            if name in records[0]:
                fix = (
                    "prompts are text only; drop the column, or rename it if rewards alone read it"
                )
                raise InvalidInput("train_dataset", f"column {name!r}", fix)
        self._check_answers(records)
        self.had_answers = "answer" in records[0]
        self.solutions = what_solutions_are(records)
        if self.solutions == "gold":
            for row in records:
                if "answer" not in row:
                    row["answer"] = _bare(row.get("solution"))
        texts = [_text_of(row, place) for place, row in enumerate(records)]
        self.table = PromptTable.from_records(
            {**row, "prompt": text} for row, text in zip(records, texts, strict=True)
        )
        self.records = [records[row] for row in self.table.dataset_row_P.tolist()]
        self._tokens: dict[int, IntArray] = {}
        self._solutions: dict[int, np.ndarray[Any, Any]] = {}
        self._digits: dict[int, bool] = {}

    @staticmethod
    def _check_answers(records: list[dict[str, Any]]) -> None:
        if "answer" not in records[0]:
            return
        for place, row in enumerate(records):
            answer = row.get("answer")
            if answer is None or not str(answer).strip():
                fix = "every row needs an answer; drop the row or fill it in"
                raise InvalidInput(f"train_dataset[{place}]['answer']", answer, fix)

    def __len__(self) -> int:
        return len(self.records)

    def columns(self, rows: Iterable[int]) -> dict[str, list[Any]]:
        """Every column but the prompt for these rows, as reward functions take them."""
        names = [name for name in self.records[0] if name != "prompt"]
        picked = [self.records[row] for row in rows]
        return {name: [record.get(name) for record in picked] for name in names}

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

    def encode(self, messages: list[Message]) -> IntArray:
        """Token ids of a conversation; see `dare.templates.encode`."""
        return encode(self._tokenizer, messages)

    def encode_prompt(self, prompt: str) -> IntArray:
        """Token ids of a prompt that need not be in the table, as if it were."""
        return self.encode(self.template.messages(prompt))

    def check_lengths(self, context: int, max_tokens: int) -> None:
        """Every plain prompt must have tokens and leave room for a full response."""
        for row in range(len(self)):
            size = len(self.tokens(row))
            if not size:
                fix = "has no tokens, so there is nothing to respond to; drop the row"
                raise InvalidInput(f"prompt {self.table.ids([row])[0]}", "", fix)
            if size + max_tokens > context:
                name = self.table.ids([row])[0]
                fix = (
                    f"{size} tokens and a response of {max_tokens} exceed the context of "
                    f"{context}; drop the row or lower max_completion_length"
                )
                raise InvalidInput(f"prompt {name}", self.records[row]["prompt"], fix)


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
            gold += len(text) <= _SHORT and _bare(text) == _bare(row["answer"])
    return "gold" if 2 * gold > len(rows) else "worked"


def _bare(answer: Any) -> str | None:
    """An answer without the signs of LaTeX around it."""
    if answer is None:
        return None
    text = str(answer).strip()
    text = boxed_answer(text) or marked_answer(text) or text
    return text.strip().strip("$").removeprefix("\\(").removesuffix("\\)").strip()


def _text_of(row: Mapping[str, Any], place: int) -> str:
    """What identifies a prompt: its text, or its messages in a canonical form."""
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        return prompt
    good = (
        isinstance(prompt, list)
        and prompt
        and all(isinstance(turn, Mapping) and {"role", "content"} <= set(turn) for turn in prompt)
    )
    if not good:
        fix = "must be a string or a list of messages with 'role' and 'content'"
        raise InvalidInput(f"train_dataset[{place}]['prompt']", prompt, fix)
    return json.dumps([[turn["role"], turn["content"]] for turn in prompt or []])
