"""One test of a program: by what it prints, by what a function returns, by assertions.

What a program's process answers may be a forgery; that is no better than a lie.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import secrets
import signal
import time
from collections.abc import Mapping
from typing import Any

from dare_errors import InvalidInput
from dare_sandbox.base import Ended, Execution, Job, Sandbox
from dare_verify.code.answers import same
from dare_verify.code.session import HungUp, Late, Session, TooLong, payload
from dare_verify.code.verdict import MANY_CALLS, REPLY_BYTES, Rules, Ruling, Trial
from dare_verify.code.wire import Unsupported, dump, load

TOLERANCE = 1e-6
_LONGEST_FLOAT = 1000
_TOKEN = re.compile(rb"\S+")
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_WHOLE = re.compile(rb"[+-]?[0-9]+(\.0*)?")


def difference(printed: bytes, expected: bytes) -> str | None:
    """Where the two texts differ, in words; None where they agree.

    They agree when they have the same tokens, in the same order: white space around them does not
    count, case does. Integers are compared digit by digit. Only where the expected token is a
    decimal fraction may the printed one be off, by 1e-6 of the larger of itself and one.
    """
    if printed.rstrip() == expected.rstrip():
        return None
    # One token at a time: a list of all would let a program fill the judge's memory.
    wanted = _TOKEN.finditer(expected)
    count = 0
    for count, found in enumerate(_TOKEN.finditer(printed), 1):
        gold = next(wanted, None)
        if gold is None:
            return f"more than {count - 1} tokens"
        if found[0] != gold[0] and not _close(found[0], gold[0]):
            return f"token {count} differs"
    return f"only {count} tokens" if next(wanted, None) else None


def _close(token: bytes, gold: bytes) -> bool:
    if max(len(token), len(gold)) > _LONGEST_FLOAT:
        return False
    if _INTEGER.fullmatch(gold) or not _NUMBER.fullmatch(gold) or not _NUMBER.fullmatch(token):
        return False
    if _WHOLE.fullmatch(gold) and _WHOLE.fullmatch(token):
        return _whole(token) == _whole(gold)  # 1000000007.0 is not 1000000008
    value, target = float(token), float(gold)
    if math.isinf(value) or math.isinf(target):
        return False
    return abs(value - target) <= TOLERANCE * max(1.0, abs(target))


def _whole(token: bytes) -> bytes:
    """An integer that may be written with a fraction of zeros, in one form: -07.00 is -7."""
    digits = token.lstrip(b"+-").split(b".")[0].lstrip(b"0") or b"0"
    return b"-" + digits if token.startswith(b"-") and digits != b"0" else digits


RETURNED, RAISED = b"=", b"!"


def raised(reply: bytes) -> tuple[Ruling, str]:
    """What an exception comes to."""
    try:
        names, said = load(reply[1:], inert=True)
        message = f"{names[0]}: {said}"
    except (ValueError, TypeError, LookupError):
        return Ruling.RUNTIME_ERROR, "not an answer"
    memory = message.startswith("MemoryError")
    return (Ruling.MEMORY_LIMIT if memory else Ruling.RUNTIME_ERROR), message


def compared(reply: bytes, expected: Any) -> tuple[Ruling, str]:
    """What an answer comes to, beside the expected one."""
    if reply[:1] == RAISED:
        return raised(reply)
    try:
        if reply[:1] == RETURNED and same(load(reply[1:], inert=True), expected):
            return Ruling.ACCEPTED, ""
    except (ValueError, RecursionError):
        return Ruling.WRONG_ANSWER, "not an answer"
    return Ruling.WRONG_ANSWER, f"answered {reply[1:200].decode('utf-8', 'replace')}"


_SHOWN = 8192  # bytes of output that a verdict keeps
_LIMITS = {
    Ended.TIME: Ruling.TIME_LIMIT,
    Ended.MEMORY: Ruling.MEMORY_LIMIT,
    Ended.OUTPUT: Ruling.OUTPUT_LIMIT,
    Ended.LOST: Ruling.JUDGE_ERROR,
}


class BadTest(Exception):
    """A test that the judge cannot use: the program is not to blame."""


def died(execution: Execution) -> Trial:
    """The trial of a program that ended when it should not have, or wrongly."""
    ruling = _LIMITS.get(execution.ended, Ruling.RUNTIME_ERROR)
    if execution.ended is Ended.SIGNALLED and execution.code == signal.SIGPROF:
        ruling = Ruling.TIME_LIMIT  # the driver's own timer
    words = f"{execution.ended} ({execution.code}) {execution.detail}".strip()
    return trial(ruling, execution, words)


def trial(ruling: Ruling, execution: Execution, message: str = "") -> Trial:
    """What the judge says, with what the program left behind."""
    return Trial(
        ruling,
        message[:1000],
        execution.stdout[:_SHOWN].decode("utf-8", "replace"),
        execution.stderr[-_SHOWN:].decode("utf-8", "replace"),
        execution.cpu_s,
        execution.wall_s - execution.waited_s,
    )


class Stopped(Exception):
    """The program can say no more; its trial is over."""

    def __init__(self, outcome: Trial) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class Candidate:
    """The program's process. The judge's clock runs only while it waits for an answer.

    With `many`, it is there for many calls, which together have several times the limit of one;
    objects that are not plain data then stay inside and are spoken of by number.
    """

    def __init__(
        self, sandbox: Sandbox, rules: Rules, *, many: bool = False, waiting_s: float = 0.0
    ) -> None:
        times = MANY_CALLS if many else 1
        self._many, self._rules, self._left_s = many, rules, times * rules.wall_s
        limits = rules.limits(times, waiting_s)
        self._session = Session(sandbox, payload("wire", "driver"), limits)

    def load(self, program: str, prelude: str) -> None:
        """Run the program's text; raises Stopped where that fails."""
        reply = self.ask(
            json.dumps([prelude, program, self._many, self._rules.time_limit_s]).encode()
        )
        if reply[:1] != b"+":
            raise Stopped(self.stop(*raised(reply)))

    def ask(self, request: bytes, longest: int = REPLY_BYTES) -> bytes:
        """Send a request and wait for the answer, which may be a forgery; raises Stopped."""
        began = time.monotonic()
        patience_s = min(self._left_s, self._rules.wall_s)
        try:
            self._session.send(request, max(patience_s, 1.0))
            reply = self._session.receive(patience_s - (time.monotonic() - began), longest)
        except HungUp:
            raise Stopped(died(self._session.end(kill=False))) from None
        except Late:
            raise Stopped(self.stop(Ruling.TIME_LIMIT, "no answer in time")) from None
        except TooLong:
            raise Stopped(self.stop(Ruling.OUTPUT_LIMIT, "an answer that is too long")) from None
        self._left_s -= time.monotonic() - began
        return reply

    def stop(self, ruling: Ruling, message: str = "") -> Trial:
        """End the process; what the judge says of it, unless the sandbox itself failed."""
        return trial(ruling, self._session.end(), message)

    def __enter__(self) -> Candidate:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.end()


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
