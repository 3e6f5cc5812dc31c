"""Tests that give a program its standard input and look at its standard output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dare.rewards.code.rules import Rules
from dare.rewards.code.tokens import difference
from dare.rewards.code.trial import BadTest, died, trial
from dare.rewards.code.verdict import Ruling, Trial
from dare.sandbox.base import Ended, Job, Sandbox

# Contest answers of more than 4300 digits are honest. The sandboxes here have no such limit.
_LONG_INTEGERS = "__import__('sys').set_int_max_str_digits(0)"


def try_stdin(sandbox: Sandbox, program: str, test: Mapping[str, Any], rules: Rules) -> Trial:
    """Run the program on `input`; its output must have the tokens of `output`."""
    stdin, expected = _text(test.get("input", ""), "input"), _text(test.get("output"), "output")
    room = rules.limits()
    enough = max(room.output_bytes, 2 * len(expected))
    source = program if getattr(sandbox, "channels", True) else _unbound(program)
    ended = sandbox.run(Job(source, stdin, dataclasses.replace(room, output_bytes=enough)))
    if ended.ended is not Ended.EXITED or ended.code != 0:
        return died(ended)
    wrong = difference(ended.stdout, expected)
    return trial(Ruling.WRONG_ANSWER if wrong else Ruling.ACCEPTED, ended, wrong or "")


def _unbound(program: str) -> str:
    """The program without a limit on digits, with the same line numbers where that is easy."""
    if "__future__" in program:  # must come first
        return program
    same_line = program.startswith(("import ", "from "))
    return _LONG_INTEGERS + (";" if same_line else "\n") + program


def _text(value: Any, field: str) -> bytes:
    """A text, or the lines of one: data sets have both."""
    if isinstance(value, (list, tuple)) and all(_is_word(item) for item in value):
        value = "\n".join(str(item) for item in value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise BadTest(f"{field} must be a text or a list of lines, not {value!r:.80}")
    return value.encode("utf-8", "surrogatepass")


def _is_word(item: object) -> bool:
    return isinstance(item, (str, int, float)) and not isinstance(item, bool)
