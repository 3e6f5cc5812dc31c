"""The one schema of a row: id, source, prompt, answer or tests, level, solution, extra."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from dare.curriculum.prompts import TEST_COLUMNS, prompt_id
from dare.data.code_rows import as_tests, with_call
from dare.data.load import Source, read_rows
from dare.data.row import (
    column_names,
    encodable,
    has,
    lookup,
    no_column,
    problem_text,
    text_of,
    where_is,
)
from dare.errors import InvalidInput, suggest
from dare_verify.math.extract import boxed_answer, gold_answer, marked_answer

FIELDS = ("id", "source", "prompt", "answer", "tests", "level", "solution", "extra")

# Where a field is looked for when no column is named: the first of these that a row has.
GUESSES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "problem", "question", "query", "instruction", "messages"),
    "answer": (
        *("answer", "final_answer", "expected_answer", "ground_truth", "gold", "target"),
        "reward_model.ground_truth",
    ),
    "tests": TEST_COLUMNS,
    "level": ("level", "difficulty"),
    "solution": ("solution", "canonical_solution", "rationale"),
    "source": ("source", "data_source"),
}
_MAPPED = (*GUESSES, "id")
_LEVEL = re.compile(r"(?:level\s*)?(\S.*)", re.IGNORECASE)


def to_row(
    raw: Mapping[str, Any],
    source: str,
    columns: Mapping[str, str] | None = None,
    *,
    need_answer: bool = True,
) -> dict[str, Any]:
    r"""A raw row in the schema, or InvalidInput that names the row and the field.

    `columns` names columns by field ({"prompt": "question"}); other fields are looked for under
    their usual names. `source` is the name of the data set; a row's own source wins over it. An
    answer is a string; that of GSM8K is what follows `####`, a solution without answer gives its
    last `\boxed{}`. Columns that are no field go to `extra`. The id is the stable hash of source
    and prompt that the curriculum uses.
    """
    where = where_is(raw)
    found, used = _found(raw, columns or {})
    prompt = _prompt(found.get("prompt"), f"{where}: {_shown(used, 'prompt')}", raw)
    solution = _string(found.get("solution"), f"{where}: {_shown(used, 'solution')}")
    if used["prompt"] == "messages" and not isinstance(prompt, str):
        prompt, last = _without_reply(prompt)
        solution = solution or last
    answer = _answer(found.get("answer"), f"{where}: {_shown(used, 'answer')}")
    if answer is not None and "####" in answer:
        solution, answer = solution or answer, marked_answer(answer)
    if answer is None and solution is not None:
        answer = boxed_answer(solution) or marked_answer(solution)
    tests = as_tests(found.get("tests"), raw, f"{where}: {_shown(used, 'tests')}")
    if need_answer and answer is None and tests is None:
        fix = "the row has neither; name its column, or drop the row"
        raise InvalidInput(f"{where}: answer or tests", found.get("answer"), fix)
    name = _string(found.get("source"), f"{where}: source") or source
    made = prompt_id(name, text_of(prompt))
    id_column = (columns or {}).get("id", "id")
    extra = _extra(raw, {id_column, *used.values()}, where)
    own_id = lookup(raw, id_column)
    if own_id is not None and own_id != made:
        extra["id"] = own_id
    return {
        "id": made,
        "source": name,
        "prompt": prompt,
        "answer": answer,
        "tests": tests,
        "level": as_level(found.get("level"), f"{where}: {_shown(used, 'level')}"),
        "solution": solution,
        "extra": extra,
    }


def check_columns(columns: Mapping[str, str]) -> None:
    """Refuse a mapping of columns that names no field."""
    if not isinstance(columns, Mapping):
        raise InvalidInput("columns", columns, "write {field: column}, as in {prompt: question}")
    for field, column in columns.items():
        if field not in _MAPPED:
            raise InvalidInput(f"columns.{field}", column, suggest(str(field), _MAPPED))
        if not isinstance(column, str):
            raise InvalidInput(f"columns.{field}", column, "must be the name of a column")


def _found(raw: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[dict[str, Any], Any]:
    """Values by field, and the column that each was taken from."""
    values: dict[str, Any] = {}
    used: dict[str, str] = {}
    for field, names in GUESSES.items():
        named = columns.get(field)
        if named is not None:
            if field in ("prompt", "answer", "tests") and not has(raw, named):
                raise no_column(raw, named, field)
            names = (named,)
        taken = columns.values() if named is None else ()
        for name in names:
            value = None if name in taken else lookup(raw, name)
            if value is not None or name == named:
                values[field], used[field] = value, name
                break
    return values, used


def _shown(used: Mapping[str, str], field: str) -> str:
    return used.get(field, field)


def _prompt(value: Any, where: str, raw: Mapping[str, Any]) -> str | list[dict[str, str]]:
    if value is None:
        fix = "needs a prompt: name its column with columns = {prompt: ...}"
        fix = f"{fix}; it has {column_names(raw)}"
        raise InvalidInput(where, None, fix)
    if isinstance(value, str) and value.strip():
        return encodable(value, where)
    if not isinstance(value, list) or not value:
        raise InvalidInput(where, value, "must be a non-empty string or a list of messages")
    turns = []
    for place, turn in enumerate(value):
        here = f"{where}[{place}]"
        known = isinstance(turn, Mapping) and {"role", "content"} <= set(turn)
        if not known or not isinstance(turn["role"], str) or not isinstance(turn["content"], str):
            raise InvalidInput(here, turn, "a message has a 'role' and a 'content', both strings")
        turns.append({"role": turn["role"], "content": encodable(turn["content"], here)})
    if not problem_text(turns).strip():
        raise InvalidInput(where, value, "has no words")
    return turns


def _without_reply(
    turns: list[dict[str, str]],
) -> tuple[list[dict[str, str]], str | None]:
    """A conversation for fine-tuning ends with what the policy is to find by itself."""
    if len(turns) > 1 and turns[-1]["role"] == "assistant":
        return turns[:-1], turns[-1]["content"].strip() or None
    return turns, None


def _answer(value: Any, where: str) -> str | None:
    if isinstance(value, list | tuple) and not any(isinstance(v, list | dict) for v in value):
        parts = [_string(item, f"{where}[{place}]") for place, item in enumerate(value)]
        return ", ".join(part for part in parts if part is not None) or None
    return _string(value, where)


def _string(value: Any, where: str) -> str | None:
    """A string or a number as a string; null and blank are None."""
    if value is None:
        return None
    if isinstance(value, str):
        return encodable(value, where) if value.strip() else None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        kind = type(value).__name__
        raise InvalidInput(where, value, f"must be a string or a number, not a {kind}")
    if isinstance(value, int):
        return gold_answer(value)  # also one that is longer than `str` will write
    if not math.isfinite(value):
        raise InvalidInput(where, value, "is no number; use null or leave the field out")
    return str(value)


def as_level(value: Any, where: str) -> str | None:
    """'Level 5', 5 and 5.0 are all '5'; other levels are words."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = _string(value, where)
    match = None if text is None else _LEVEL.fullmatch(text.strip())
    return None if match is None else match[1]


def _extra(raw: Mapping[str, Any], used: set[str], where: str) -> dict[str, Any]:
    """What is no field, with what an earlier preparation put there."""
    rest = {
        str(name): value
        for name, value in raw.items()
        if name not in used and name not in FIELDS and value is not None
    }
    given = raw.get("extra")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise InvalidInput(f"{where}: extra", given, "must be an object or its JSON") from None
    if given is None:
        return rest
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{where}: extra", given, "must be an object or its JSON")
    return {**given, **rest}


_TRAINED = tuple(name for name in FIELDS if name not in ("id", "extra"))
# What reward functions are given beside the columns: a column of such a name would hide it.
_GIVEN = ("prompts", "completions", "completion_ids")


def training_rows(source: Source, *, name: str = "data") -> list[dict[str, Any]]:
    """Rows with `prompt`, `source` and, where there are any, answer, tests, level and solution.

    Every other column, and what a preparation put into `extra`, is there under its own name for
    reward functions, unless the rollouts have that name there (`completions`). `name` is the
    source of rows that name none. Whether an answer is needed is for the reward to say.
    """
    columns = None
    if isinstance(source, dict) and source.get("columns"):
        columns = source["columns"]
        check_columns(columns)
        source = {key: value for key, value in source.items() if key != "columns"}
    rows: list[dict[str, Any]] = []
    present: dict[str, None] = {}
    level_named = bool(columns and "level" in columns)
    for raw in read_rows(source):
        row = with_call(to_row(raw, name, columns, need_answer=False), raw)
        own = {key: value for key, value in raw.items() if key not in ("extra", *_TRAINED)}
        fields = {key: row[key] for key in _TRAINED if row[key] is not None}
        made = {**own, **row["extra"], **fields}
        for given in _GIVEN:
            made.pop(given, None)
        rows.append(made)
        present.update(dict.fromkeys(made))
    if level_named and "level" not in present:
        raise InvalidInput("columns.level", (columns or {})["level"], "no row has this column")
    # Rewards are called with whole columns, so every row has every one of them.
    return [{key: row.get(key) for key in present} for row in rows]
