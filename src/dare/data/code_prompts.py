"""Prompts of programming problems that say what their tests will call.

APPS keeps the signature in a column of its own, and MBPP shows it in its tests alone. A policy
that is not shown the name of the function cannot pass, however good it is.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Mapping
from typing import Any

from dare.curriculum.prompts import prompt_id
from dare.data.row import lookup
from dare.data.schema import problem_text, text_of

_BUILTIN = frozenset(dir(builtins))


def with_call(row: dict[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """The row, with starter code or assertions at the end of a prompt that does not name them.

    The wording is that of the benchmarks. The id follows the prompt; a row whose prompt has all it
    needs is returned as it is.
    """
    tests = row["tests"]
    if not tests:
        return row
    name, text = _called(tests[0]), problem_text(row["prompt"])
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


def _called(test: Mapping[str, Any]) -> str | None:
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
