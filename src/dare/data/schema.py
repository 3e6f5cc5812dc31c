"""The one schema of a row: id, source, prompt, answer or tests, level, solution, extra.

Tests of programs come in the forms that data sets have; the judge takes three.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any

from dare.curriculum.prompts import TEST_COLUMNS, prompt_id
from dare.data.load import Source, read_rows
from dare.data.row import (
    blank,
    column_names,
    encodable,
    has,
    lookup,
    no_column,
    problem_text,
    text_of,
    where_is,
)
from dare.errors import InvalidInput, require, suggest
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
    found, used = _found(raw, columns or {})
    where = {field: f"{where_is(raw)}: {used.get(field, field)}" for field in FIELDS}
    prompt = _prompt(found.get("prompt"), where["prompt"], raw)
    solution = _string(found.get("solution"), where["solution"])
    if used["prompt"] == "messages" and not isinstance(prompt, str):
        prompt, last = _without_reply(prompt)
        solution = solution or last
    answer = _answer(found.get("answer"), where["answer"])
    if answer is not None and "####" in answer:
        solution, answer = solution or answer, marked_answer(answer)
    if answer is None and solution is not None:
        answer = boxed_answer(solution) or marked_answer(solution)
    tests = as_tests(found.get("tests"), raw, where["tests"])
    if need_answer and answer is None and tests is None:
        fix = "the row has neither; name its column, or drop the row"
        raise InvalidInput(f"{where_is(raw)}: answer or tests", found.get("answer"), fix)
    name = _string(found.get("source"), f"{where_is(raw)}: source") or source
    made = prompt_id(name, text_of(prompt))
    id_column = (columns or {}).get("id", "id")
    extra = _extra(raw, {id_column, *used.values()}, where["extra"])
    own_id = lookup(raw, id_column)
    if own_id is not None and own_id != made:
        extra["id"] = own_id
    return {
        "id": made,
        "source": name,
        "prompt": prompt,
        "answer": answer,
        "tests": tests,
        "level": as_level(found.get("level"), where["level"]),
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
        same = field != "prompt" and column == columns.get("prompt")
        require(not same, f"columns.{field}", column, "is the column of the prompt, too")


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


def _prompt(value: Any, where: str, raw: Mapping[str, Any]) -> str | list[dict[str, str]]:
    if value is None:
        fix = "needs a prompt: name its column (--columns prompt=NAME, or columns: {prompt: NAME})"
        fix = f"{fix}; it has {column_names(raw)}"
        raise InvalidInput(where, None, fix)
    if isinstance(value, str) and not blank(encodable(value, where)):
        return value
    if not isinstance(value, list) or not value:
        raise InvalidInput(where, value, "must be a non-empty string or a list of messages")
    turns = []
    for place, turn in enumerate(value):
        here = f"{where}[{place}]"
        known = isinstance(turn, Mapping) and {"role", "content"} <= set(turn)
        if not known or not isinstance(turn["role"], str) or not isinstance(turn["content"], str):
            raise InvalidInput(here, turn, "a message has a 'role' and a 'content', both strings")
        turns.append({"role": turn["role"], "content": encodable(turn["content"], here)})
    if blank(problem_text(turns)):
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
        return None if blank(encodable(value, where)) else value
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
        with suppress(ValueError, RecursionError):
            given = json.loads(given)
    if given is None:
        return rest
    if not isinstance(given, Mapping):
        raise InvalidInput(where, given, "must be an object or its JSON")
    return {**given, **rest}


_TRAINED = tuple(name for name in FIELDS if name not in ("id", "extra"))
# What reward functions are given beside the columns: a column of such a name would hide it.
EMPTY = "no row has anything in this column"
"""What is said of a column that the user named."""
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
    empty = dict(columns or {})
    for raw in read_rows(source):
        row = with_call(to_row(raw, name, columns, need_answer=False), raw)
        empty = {key: one for key, one in empty.items() if lookup(raw, one) is None}
        own = {key: value for key, value in raw.items() if key not in ("extra", *_TRAINED)}
        fields = {key: row[key] for key in _TRAINED if row[key] is not None}
        made = {**own, **row["extra"], **fields}
        for given in _GIVEN:
            made.pop(given, None)
        rows.append(made)
        present.update(dict.fromkeys(made))
    for key, one in empty.items():
        raise InvalidInput(f"columns.{key}", one, EMPTY)
    # Rewards are called with whole columns, so every row has every one of them.
    return [{key: row.get(key) for key in present} for row in rows]


Test = dict[str, Any]
_NAME = re.compile(r"^\s*def\s+(\w+)", re.MULTILINE)
_IN_CLASS = re.compile(r"^class\s+Solution\b", re.MULTILINE)


def as_tests(value: Any, raw: Mapping[str, Any], where: str) -> list[Test] | None:
    """A row's tests as dicts of `dare_verify.code.judge`; None where it has none.

    Read are: such dicts, or the JSON text of a list of them; {"inputs", "outputs", "fn_name"} as
    in APPS and TACO; pairs of input and output beside a `starter_code`; assertions (MBPP); test
    code with `check(candidate)` beside an `entry_point` (HumanEval).
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = _decoded(value, where)
    if value is None or value == "" or value == [] or value == {}:
        return None
    if isinstance(value, str):
        return [_code(value, raw)]
    if isinstance(value, Mapping):
        return _paired(value, raw, where)
    if not isinstance(value, list):
        raise InvalidInput(where, value, "must be a list of tests, or its JSON")
    if all(isinstance(item, str) for item in value):
        return [_code("\n".join(value), raw)]
    tests = []
    for place, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise InvalidInput(f"{where}[{place}]", item, "a test must be an object")
        # Parquet gives every test of a column all keys of any.
        test = {str(name): part for name, part in item.items() if part is not None}
        if "fn" in test and "output" in item:
            test["output"] = item["output"]  # a function may return None
        for name in ("code", "entry_point", "setup"):
            text = test.get(name, "")
            require(isinstance(text, str), f"{where}[{place}].{name}", text, "must be a text")
        if not {"output", "code"} & test.keys():
            raise InvalidInput(f"{where}[{place}]", item, "a test needs an 'output' or 'code'")
        tests.append(test)
    return _called(tests, raw)


def _decoded(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return _python(text, where)
    except (ValueError, RecursionError):
        fix = "holds an integer of more than 4,300 digits, or is nested too deeply"
        raise InvalidInput(where, text[:80], fix) from None


def _python(text: str, where: str) -> Any:
    """A list as Python writes it (tables of text hold such), or code that begins with a bracket."""
    try:
        ast.parse(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidInput(where, text[-80:], "is neither JSON nor code; is it cut off?") from None
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
        return text


def _code(code: str, raw: Mapping[str, Any]) -> Test:
    test: Test = {"code": code}
    entry, setup = lookup(raw, "entry_point"), lookup(raw, "test_setup_code")
    if isinstance(entry, str) and entry:
        test["entry_point"] = entry
    if isinstance(setup, str) and setup.strip():
        test["setup"] = setup
    return test


def _paired(value: Mapping[str, Any], raw: Mapping[str, Any], where: str) -> list[Test] | None:
    """Inputs and outputs in two lists, for standard input or for one function."""
    inputs, outputs = value.get("inputs"), value.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise InvalidInput(where, value, "must be a list of tests, or {inputs: [], outputs: []}")
    if len(inputs) != len(outputs):
        fix = f"has {len(inputs)} inputs and {len(outputs)} outputs"
        raise InvalidInput(where, value, fix)
    pairs = list(zip(inputs, outputs, strict=True))
    function = value.get("fn_name")
    if not function:
        return [{"input": given, "output": output} for given, output in pairs] or None
    name = _qualified(str(function), raw)
    return [
        # These sets wrap what a function returns in a list of one.
        {
            "fn": name,
            "args": given if isinstance(given, list | dict) else [given],
            "output": output[0] if isinstance(output, list) and len(output) == 1 else output,
        }
        for given, output in pairs
    ] or None


def _called(tests: list[Test], raw: Mapping[str, Any]) -> list[Test]:
    """Pairs of text that are arguments of a function, one a line, where there is starter code."""
    starter = lookup(raw, "starter_code")
    name = _NAME.search(starter) if isinstance(starter, str) else None
    if name is None or any("fn" in test or "code" in test for test in tests):
        return tests
    called = []
    for test in tests:
        try:
            args = [json.loads(line) for line in test["input"].splitlines()]
            output = test["output"]
            output = json.loads(output) if isinstance(output, str) else output
        except (KeyError, AttributeError, ValueError, RecursionError):
            return tests  # words, not arguments
        # LiveCodeBench's tests of functions give what is returned as it is.
        bare = test.get("testtype") == "functional"
        single = isinstance(output, list) and len(output) == 1 and not bare
        fn = _qualified(name[1], raw)
        called.append({"fn": fn, "args": args, "output": output[0] if single else output})
    return called


def _qualified(name: str, raw: Mapping[str, Any]) -> str:
    starter = lookup(raw, "starter_code")
    inside = isinstance(starter, str) and _IN_CLASS.search(starter)
    return f"Solution().{name}" if inside and "." not in name else name


_BUILTIN = frozenset(dir(builtins))


def with_call(row: dict[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """The row, with starter code or assertions at the end of a prompt that does not name them.

    The wording is that of the benchmarks. The id follows the prompt; a row whose prompt has all it
    needs is returned as it is.
    """
    tests = row["tests"]
    if not tests:
        return row
    name, text = _function_of(tests[0]), problem_text(row["prompt"])
    if name is None or re.search(rf"\b{re.escape(name)}\b", text):
        return row
    starter = lookup(raw, "starter_code", lookup(raw, "extra.starter_code"))
    if isinstance(starter, str) and name in starter:
        more = f"Begin with this code:\n\n```python\n{starter.strip()}\n```"
    elif "code" in tests[0] and not tests[0].get("entry_point"):
        more = f"The program must pass these tests:\n\n```python\n{tests[0]['code']}\n```"
    else:
        more = f"The program is called as `{tests[0].get('fn', name)}(...)`."
    prompt = _longer(row["prompt"], more)
    return {**row, "prompt": prompt, "id": prompt_id(row["source"], text_of(prompt))}


def _function_of(test: Mapping[str, Any]) -> str | None:
    """The function that a test calls; None where it calls none, or not for all to see."""
    if "fn" in test:
        return str(test["fn"]).rpartition(".")[2]
    if "code" not in test:
        return None
    if test.get("entry_point"):
        return str(test["entry_point"])
    try:
        body = ast.parse(test["code"]).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not body or not all(isinstance(step, ast.Assert) for step in body):
        return None  # a program of its own, which is not for showing
    calls = [part for part in ast.walk(body[0]) if isinstance(part, ast.Call)]
    names = [call.func.id for call in calls if isinstance(call.func, ast.Name)]
    own = [name for name in names if name not in _BUILTIN]
    return own[0] if own else None


def _longer(prompt: str | list[dict[str, str]], more: str) -> str | list[dict[str, str]]:
    if isinstance(prompt, str):
        return f"{prompt.rstrip()}\n\n{more}"
    place = max((n for n, turn in enumerate(prompt) if turn["role"] == "user"), default=-1)
    turn = prompt[place]
    longer = {**turn, "content": f"{turn['content'].rstrip()}\n\n{more}"}
    return [longer if other is turn else other for other in prompt]
