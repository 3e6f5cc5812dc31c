"""One test of a program: by what it prints, by what a function returns, by assertions.

First what may be said of a program and what it may use, then how one process is talked to, then the
three kinds of test. What a process answers may be a forgery; that is no better than a lie.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import marshal
import math
import re
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from dare_errors import InvalidInput, require
from dare_sandbox.base import Ended, Execution, Job, Limits, Sandbox
from dare_sandbox.inside.system import START_S, STRETCH
from dare_verify.code.answers import same
from dare_verify.code.wire import Unsupported, dump, frame, load


class Ruling(StrEnum):
    """Why a program passed, failed or could not be judged."""

    ACCEPTED = "accepted"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    NO_PROGRAM = "no_program"
    JUDGE_ERROR = "judge_error"


@dataclass(frozen=True)
class Trial:
    """One program on one test; its `wall_s` are without those that it waited for the machine."""

    ruling: Ruling
    message: str = ""
    stdout: str = ""
    stderr: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """One program on all of its tests.

    `passed` is None where the fault is not the program's: then nothing is known of it. `stdout`,
    `stderr` and `message` are those of the first test that was not passed, else of the last one.
    """

    verdict: Ruling
    message: str = ""
    stdout: str = ""
    stderr: str = ""
    cpu_s: float = 0.0
    tests_passed: int = 0
    tests_run: int = 0
    failed_test: int | None = None

    @property
    def passed(self) -> bool | None:
        """True, False, or None for unscored."""
        return None if self.verdict is Ruling.JUDGE_ERROR else self.verdict is Ruling.ACCEPTED


REPLY_BYTES = 16 << 20
MANY_CALLS = 3  # the calls of one assert test have this many times the limit of one call
_PROCESSES = 128  # a hundred threads are honest
_CHECKER = Limits(wall_s=120.0, cpu_s=40.0, memory_mb=2048)


@dataclass(frozen=True)
class Rules:
    """Limits of one test. The time limit is CPU time: a busy machine must not change a verdict."""

    time_limit_s: float = 4.0
    memory_mb: int = 512
    wall_limit_s: float | None = None
    output_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        require(self.time_limit_s > 0, "time_limit_s", self.time_limit_s, "must be positive")
        require(self.wall_s > 0, "wall_limit_s", self.wall_limit_s, "must be positive")
        require(self.memory_mb >= 16, "memory_mb", self.memory_mb, "must be at least 16")

    @property
    def wall_s(self) -> float:
        """How long a program that sleeps or waits is let be."""
        given = self.wall_limit_s
        return 2.5 * self.time_limit_s + 2.0 if given is None else given

    def limits(self, times: int = 1, waiting_s: float = 0.0) -> Limits:
        """For the sandbox: some times the time limit, and `waiting_s` of waiting for the judge."""
        return Limits(
            wall_s=times * self.wall_s + waiting_s,
            cpu_s=times * self.time_limit_s,
            memory_mb=self.memory_mb,
            output_bytes=self.output_bytes,
            processes=_PROCESSES,
        )

    @staticmethod
    def checker() -> Limits:
        """For the process that runs a data set's own test code."""
        return _CHECKER


_HERE = Path(__file__).parent


class NotStarted(Exception):
    """The sandbox could not start a process to talk to."""


class HungUp(Exception):
    """The process ended, or closed its end of the line."""


class Late(Exception):
    """No message came in time."""


class TooLong(Exception):
    """The message is longer than any answer should be."""


@functools.cache
def payload(*names: str, portable: bool = False) -> str:
    """Files of this package as one program; the last of them is run, the others are imported.

    They go compiled, which saves half the time of a start; `portable`, as text for any Python.
    """
    parts = ["import binascii, marshal, sys, types\n"]
    for name in names:
        text = (_HERE / f"{name}.py").read_text(encoding="utf-8")
        code = f"compile({text!r}, {name!r}, 'exec')"
        if not portable:
            compiled = marshal.dumps(compile(text, name, "exec", optimize=2))
            # Base64 has nothing to escape, which is what takes long to read.
            code = f"marshal.loads(binascii.a2b_base64('{base64.b64encode(compiled).decode()}'))"
        if name == names[-1]:
            parts.append(f"exec({code}, {{'__name__': '__main__'}})\n")
        else:
            parts.append(
                f"module = sys.modules['dare_verify.code.{name}'] = types.ModuleType({name!r})\n"
                f"exec({code}, module.__dict__)\n"
            )
    return "".join(parts)


class Session:
    """One process that was sent `payload(...)`, once it has said that it runs."""

    def __init__(self, sandbox: Sandbox, source: str, limits: Limits) -> None:
        # A start that takes long (many others fork, say) is not the program's fault. Of what comes
        # then the judge has a clock of his own.
        limits = dataclasses.replace(limits, wall_s=limits.wall_s + START_S)
        self._running = sandbox.start(Job(source, limits=limits, channel=True))
        if self._running.channel is None:
            ended = self._running.wait()
            raise NotStarted(f"{sandbox.name} opened no channel: {ended.detail}")
        self._channel = self._running.channel
        self._ended: Execution | None = None
        slow = False
        try:
            self.receive(START_S, 0, stretch=1)
        except HungUp:  # too little memory, say: whoever speaks to it next is told how it ended
            slow = self.end(kill=False).ended is Ended.TIME
        except (Late, TooLong):
            slow = True
        except BaseException:
            self.end()
            raise
        if slow:
            self.end()
            raise NotStarted(f"{sandbox.name} started no process in {START_S:g} s")

    def send(self, message: bytes, within_s: float) -> None:
        """Raises HungUp or Late where the process does not take it."""
        try:
            self._channel.settimeout(max(within_s, 0.001))
            self._channel.sendall(frame(message))
        except TimeoutError:
            raise Late from None
        except OSError:  # of a line that is closed on this side, too
            raise HungUp from None

    def receive(
        self, within_s: float, longest: int = REPLY_BYTES, *, stretch: int = STRETCH
    ) -> bytes:
        """The next message; raises HungUp, Late or TooLong.

        What the machine keeps the process waiting meanwhile does not count, up to `stretch` times
        as long as it has.
        """
        began, waited_s = time.monotonic(), self.waited_s()

        def left_s() -> float:
            left = began + within_s - time.monotonic()
            more_s = self.waited_s() - waited_s
            return left if left > 0 else left + min(more_s, stretch * within_s)

        size = int.from_bytes(self._exactly(4, left_s), "big")
        if size > longest:
            raise TooLong
        return self._exactly(size, left_s)

    def _exactly(self, size: int, left_s: Callable[[], float]) -> bytes:
        parts = []
        while size:
            try:
                self._channel.settimeout(max(left_s(), 0.001))
                part = self._channel.recv(min(size, 1 << 20))
            except TimeoutError:
                if left_s() > 0:
                    continue
                raise Late from None
            except OSError:
                raise HungUp from None
            if not part:
                raise HungUp
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def waited_s(self) -> float:
        """How long the machine has kept the process waiting so far."""
        return self._running.waited_s()

    def end(self, *, kill: bool = True) -> Execution:
        """Stop the process, or let it end by itself, and say what became of it."""
        if self._ended is None:
            if kill:
                self._running.kill()
            self._ended = self._running.wait()
            with contextlib.suppress(OSError):
                self._channel.close()
        return self._ended

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


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
        began, waited_s = time.monotonic(), self._session.waited_s()
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
        waited_s = self._session.waited_s() - waited_s
        self._left_s -= max(0.0, time.monotonic() - began - max(0.0, waited_s))
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
