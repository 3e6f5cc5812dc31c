"""Tests that call one function and look at what it returns."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from dare.rewards.code.candidate import Candidate, Stopped
from dare.rewards.code.replies import compared
from dare.rewards.code.rules import REPLY_BYTES, Rules
from dare.rewards.code.session import payload
from dare.rewards.code.trial import BadTest, died, trial
from dare.rewards.code.verdict import Trial
from dare.rewards.code.wire import Unsupported, dump
from dare.sandbox.base import Ended, Job, Sandbox


def try_function(sandbox: Sandbox, program: str, test: Mapping[str, Any], rules: Rules) -> Trial:
    """Call `fn` with `args` in a fresh process; what it returns must be `output`.

    `fn` is a name, `Class().method` or `Class.method`; `args` is a list, or a dict of keywords,
    which may also come beside a list as `kwargs`.
    A bare name that only a class `Solution` has is taken from there. A fresh process for every
    test keeps state from leaking between tests and makes the time limit one of this test alone.
    """
    request, expected = _request(test), test["output"]
    try:
        # An answer far longer than the expected one is wrong, and need not be read.
        longest = min(REPLY_BYTES, (1 << 16) + 16 * len(dump(expected)))
    except Unsupported as error:
        raise BadTest(f"output: {error}") from None
    prelude = str(test.get("prelude") or "")
    if not getattr(sandbox, "channels", True):
        return _once(sandbox, json.dumps([prelude, program, request.decode()]), expected, rules)
    with Candidate(sandbox, rules) as candidate:
        try:
            candidate.load(program, prelude)
            reply = candidate.ask(request, longest)
        except Stopped as stopped:
            return stopped.outcome
        return candidate.stop(*compared(reply, expected))


def _once(sandbox: Sandbox, message: str, expected: Any, rules: Rules) -> Trial:
    """The same where there is no channel: the answer comes on standard output, behind a mark."""
    mark = secrets.token_hex(16)
    stdin = f'["{mark}",{message[1:]}'.encode()
    ended = sandbox.run(
        Job(payload("wire", "driver", "once", portable=True), stdin, rules.limits())
    )
    _, found, reply = ended.stdout.rpartition(f"\n{mark}".encode())
    if ended.ended is not Ended.EXITED or ended.code != 0 or not found:
        return died(ended)
    ruling, words = compared(reply.split(b"\n")[0], expected)
    return trial(ruling, ended, words)


def _request(test: Mapping[str, Any]) -> bytes:
    name, args = test.get("fn"), test.get("args")
    if not isinstance(name, str) or not isinstance(args, (list, tuple, dict)):
        raise BadTest("a function test needs fn, a name, and args, a list or a dict")
    if "output" not in test:
        raise BadTest("a function test needs the output")
    places, keywords = ([], args) if isinstance(args, dict) else (list(args), {})
    keywords = {**keywords, **(test.get("kwargs") or {})}
    try:
        return dump(["call", [name], places, keywords]).encode()
    except Unsupported as error:
        raise BadTest(f"args: {error}") from None
