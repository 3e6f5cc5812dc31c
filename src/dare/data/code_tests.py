"""Tests of programs, from the forms that data sets have to the three that the judge takes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from dare.data.row import lookup
from dare.errors import InvalidInput

Test = dict[str, Any]
_NAME = re.compile(r"^\s*def\s+(\w+)", re.MULTILINE)
_IN_CLASS = re.compile(r"^class\s+Solution\b", re.MULTILINE)


def as_tests(value: Any, raw: Mapping[str, Any], where: str) -> list[Test] | None:
    """A row's tests as dicts of `dare.rewards.code.judge`; None where it has none.

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
