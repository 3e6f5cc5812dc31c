"""Tests that are code: `def check(candidate)` or bare assertions, as in HumanEval and MBPP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dare.errors import InvalidInput
from dare.rewards.code.candidate import Candidate, Stopped
from dare.rewards.code.rules import Rules
from dare.rewards.code.session import HungUp, Late, Session, TooLong, payload
from dare.rewards.code.trial import BadTest, died
from dare.rewards.code.verdict import Ruling, Trial
from dare.sandbox.base import Ended, Sandbox

_HEAVY = 1 << 16  # an answer that may be why the test code ran out of time or memory


def try_assert(sandbox: Sandbox, program: str, test: Mapping[str, Any], rules: Rules) -> Trial:
    """Run the test code in a sandbox of its own, with stand-ins for the program's functions.

    `code` is the test code, `entry_point` what its `check` is called with, where it has one.
    Optional: `setup`, code to run before it; `prelude`, code to run before the program;
    `helpers`, trusted definitions (a HumanEval prompt) of functions that the test code needs.
    Without `helpers` those are taken from the program, which may have tampered with them.
    """
    if not getattr(sandbox, "channels", True):
        fix = "test code needs a sandbox on this machine: its calls go back and forth"
        raise InvalidInput("sandbox", sandbox.name, fix)
    message = _message(test)
    limits = rules.checker()
    with Candidate(sandbox, rules, many=True, waiting_s=limits.wall_s) as candidate:
        try:
            candidate.load(program, str(test.get("prelude") or ""))
            with Session(sandbox, payload("wire", "checker"), limits) as checker:
                return _converse(checker, candidate, message, limits.wall_s)
        except Stopped as stopped:
            return stopped.outcome


def _message(test: Mapping[str, Any]) -> bytes:
    code, entry = test.get("code"), test.get("entry_point") or None
    if isinstance(code, (list, tuple)):
        code = "\n".join(map(str, code))
    if not isinstance(code, str) or not isinstance(entry, str | None):
        raise BadTest("an assert test needs code and may have an entry_point, both texts")
    if test.get("setup"):
        code = f"{test['setup']}\n{code}"
    return json.dumps([code, entry, str(test.get("helpers") or "")]).encode()


def _converse(checker: Session, candidate: Candidate, message: bytes, within_s: float) -> Trial:
    """Carry calls one way and answers the other until the test code has ended."""
    calls = heaviest = 0
    try:
        checker.send(message, within_s)
        while (message := checker.receive(within_s))[:1] == b">":
            reply = candidate.ask(message[1:])
            calls, heaviest = calls + 1, max(heaviest, len(reply))
            checker.send(reply, within_s)
    except (HungUp, Late, TooLong) as error:
        ended = checker.end(kill=not isinstance(error, HungUp))
        if ended.ended is Ended.LOST:
            return died(ended)
        if heaviest > _HEAVY:
            return candidate.stop(Ruling.WRONG_ANSWER, "an answer too heavy for the tests")
        raise BadTest(f"the test code did not end: {ended.ended} {ended.detail}") from None
    kind, words = json.loads(message[1:])
    if kind == "judge" or not calls:
        raise BadTest(words or "the test code never calls the program")
    rulings = {"passed": Ruling.ACCEPTED, "program": Ruling.RUNTIME_ERROR}
    return candidate.stop(rulings.get(kind, Ruling.WRONG_ANSWER), words)
