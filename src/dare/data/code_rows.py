"""Tests of programs, from the forms that data sets have to the three that the judge takes."""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Mapping
from typing import Any

from dare.curriculum.prompts import prompt_id
from dare.data.row import lookup, problem_text, text_of
from dare.errors import InvalidInput

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
        single = isinstance(output, list) and len(output) == 1 and not _functional(test)
        fn = _qualified(name[1], raw)
        called.append({"fn": fn, "args": args, "output": output[0] if single else output})
    return called


def _functional(test: Test) -> bool:
    """LiveCodeBench's tests of functions give what is returned as it is."""
    return test.get("testtype") == "functional"


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
