"""Programs and their tests in, verdicts out; all that a caller hands over is checked first."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dare_errors import InvalidInput, require, suggest
from dare_sandbox import Sandbox, open_sandbox
from dare_verify.code.trials import (
    BadTest,
    NotStarted,
    Rules,
    Ruling,
    Trial,
    Verdict,
    try_assert,
    try_function,
    try_stdin,
)

KINDS: dict[str, tuple[str, ...]] = {  # with the keys that each test must have
    "stdin": ("output",),
    "function": ("fn", "args", "output"),
    "assert": ("code",),
}
_OPTIONS = (
    *("program", "tests", "kind", "time_limit_s", "memory_mb", "sandbox"),
    *("stop_early", "total_limit_s"),
)


def check_tests(tests: Any, kind: Any, field: str = "tests") -> None:
    """Raise InvalidInput unless these are tests of that kind."""
    require(isinstance(kind, str) and kind in KINDS, "kind", kind, suggest(str(kind), KINDS))
    listed = isinstance(tests, Sequence) and not isinstance(tests, (str, bytes))
    require(listed and tests, field, tests, "must be a list of at least one dict")
    for place, test in enumerate(tests):
        here = f"{field}[{place}]"
        require(isinstance(test, Mapping), here, test, "must be a dict")
        missing = [name for name in KINDS[kind] if name not in test]
        words = f"a {kind} test needs {', '.join(KINDS[kind])}; {', '.join(missing)} is missing"
        require(not missing, here, test, words)


def as_items(items: Any, tests: Any, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls of `judge` that a batch stands for; raises InvalidInput before any is made."""
    given = _rows(items, "items")
    if tests is not None:
        same = isinstance(tests, Sequence) and len(tests) > 0 and isinstance(tests[0], Mapping)
        each = [tests] * len(given) if same else _rows(tests, "tests")
        words = f"there are {len(given)} programs, and as many lists of tests are needed"
        require(len(each) == len(given), "tests", f"{len(each)} lists", words)
        given = [{"program": row, "tests": own} for row, own in zip(given, each, strict=True)]
    kind = options.get("kind", "stdin")
    kinds = [kind] * len(given) if isinstance(kind, str) else _rows(kind, "kind")
    words = f"one kind, or one for each of the {len(given)} programs"
    require(len(kinds) == len(given), "kind", kind, words)
    return [
        _checked({**options, "kind": own, **_dict(row, place)}, place)
        for place, (row, own) in enumerate(zip(given, kinds, strict=True))
    ]


def _rows(value: Any, field: str) -> list[Any]:
    listed = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    require(listed, field, value, "must be a list")
    return list(value)


def _dict(row: Any, place: int) -> Mapping[str, Any]:
    if isinstance(row, Mapping) and {"program", "tests"} <= row.keys():
        return row
    fix = "each must be a dict with program and tests; or give judge_batch(programs, tests)"
    raise InvalidInput(f"items[{place}]", row, fix)


def _checked(call: dict[str, Any], place: int) -> dict[str, Any]:
    for name in call:
        require(name in _OPTIONS, f"items[{place}]", name, suggest(str(name), _OPTIONS))
    program = call["program"]
    where = f"items[{place}].program"
    require(program is None or isinstance(program, str), where, program, "must be a text")
    check_tests(call["tests"], call["kind"], f"items[{place}].tests")
    return call


_LOG = logging.getLogger(__name__)
Test = Mapping[str, Any]
_KINDS: dict[str, Callable[[Sandbox, str, Test, Rules], Trial]] = {
    "stdin": try_stdin,
    "function": try_function,
    "assert": try_assert,
}
_PAUSES_S = (0.05, 1.0, 0.0)
_FULL = ("can't start new thread", "Resource temporarily unavailable")
_TOTAL = 30  # a program has this many times the limit of one test for all of them


def judge(
    program: str | None,
    tests: Sequence[Test],
    *,
    kind: str = "stdin",
    time_limit_s: float = 4.0,
    memory_mb: int = 512,
    wall_limit_s: float | None = None,
    sandbox: str | Sandbox = "auto",
    stop_early: bool = True,
    total_limit_s: float | None = None,
) -> Verdict:
    """Run a program nobody has read on its tests.

    Tests are dicts: {"input", "output"} for stdin, {"fn", "args", "output"} for function and
    {"code", "entry_point"} for assert. Time limits are CPU time, so that a busy machine changes no
    verdict: `time_limit_s` for one test (for one call of test code, three times that for all of
    its calls), `total_limit_s` for all tests. A program that only waits has `wall_limit_s`, by
    default 2.5 times the limit and 2 s; what the machine keeps it waiting does not count. It
    stops at the first test that is not passed, unless `stop_early` is off. Raises InvalidInput for
    tests that are none or lack a key; a test that cannot be used is found later, as a judge_error.
    """
    check_tests(tests, kind)
    require(program is None or isinstance(program, str), "program", program, "must be a text")
    rules = Rules(time_limit_s, memory_mb, wall_limit_s)
    if program is None or not program.strip():
        return Verdict(Ruling.NO_PROGRAM, "there is no program")
    program = program.removeprefix("\ufeff")
    if not _is_text(program):
        return Verdict(Ruling.RUNTIME_ERROR, "the program is not text")
    room = open_sandbox(sandbox) if isinstance(sandbox, str) else sandbox
    budget_s = _TOTAL * time_limit_s if total_limit_s is None else total_limit_s
    return _run(functools.partial(_try, room, program, kind, rules), tests, stop_early, budget_s)


def judge_batch(
    items: Sequence[Mapping[str, Any]] | Sequence[str | None],
    tests: Sequence[Any] | None = None,
    *,
    workers: int | None = None,
    **options: Any,
) -> list[Verdict]:
    """Judge many programs at once; the verdicts come in the order of the programs.

    Either `judge_batch([{"program": ..., "tests": [...], "kind": "stdin"}, ...])`, where each dict
    may have options of its own, or `judge_batch(programs, tests)`, with a list of tests for each
    program or one list of dicts for all. `options` are those of `judge`; `kind` may be a list.
    """
    calls = as_items(items, tests, options)
    if not calls:
        return []
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return list(pool.map(lambda call: judge(**call), calls))


def _run(
    attempt: Callable[[Test], Trial], tests: Sequence[Test], early: bool, budget_s: float
) -> Verdict:
    shown, failed, passed, run, cpu_s, wall_s = Trial(Ruling.ACCEPTED), None, 0, 0, 0.0, 0.0
    patience_s = 2.5 * budget_s + 10.0  # for programs that mostly sleep
    for place, test in enumerate(tests):
        spent = cpu_s > budget_s or wall_s > patience_s
        late = Trial(Ruling.TIME_LIMIT, "out of time for all tests together")
        outcome = late if spent else attempt(test)
        run += not spent
        cpu_s, wall_s = cpu_s + outcome.cpu_s, wall_s + outcome.wall_s
        passed += outcome.ruling is Ruling.ACCEPTED
        unscored = outcome.ruling is Ruling.JUDGE_ERROR
        if failed is None or unscored:
            shown = outcome
        if outcome.ruling is not Ruling.ACCEPTED:
            failed = place if failed is None or unscored else failed
            if early or unscored or spent:
                break
    return Verdict(
        shown.ruling, shown.message, shown.stdout, shown.stderr, cpu_s, passed, run, failed
    )


def _try(room: Sandbox, program: str, kind: str, rules: Rules, test: Test) -> Trial:
    """One test, again where the sandbox failed. Our faults are not the program's."""
    outcome = Trial(Ruling.JUDGE_ERROR)
    for pause_s in _PAUSES_S:
        try:
            outcome = _KINDS[kind](room, program, test, rules)
        except BadTest as error:
            return Trial(Ruling.JUDGE_ERROR, f"bad test: {error}")
        except InvalidInput:
            raise
        except NotStarted as error:
            outcome = Trial(Ruling.JUDGE_ERROR, f"the sandbox failed: {error}")
        except Exception as error:
            _LOG.warning("the judge failed", exc_info=True)
            outcome = Trial(Ruling.JUDGE_ERROR, f"the judge failed: {error!r}")
        if outcome.ruling is not Ruling.JUDGE_ERROR and not _starved(outcome):
            return outcome
        time.sleep(pause_s)
    return outcome


def _starved(outcome: Trial) -> bool:
    """Whether there were no processes to be had: where users are counted, another took them."""
    last = outcome.stderr.rstrip().rpartition("\n")[2]
    return outcome.ruling is Ruling.RUNTIME_ERROR and any(words in last for words in _FULL)


def _is_text(program: str) -> bool:
    try:
        program.encode()
    except UnicodeEncodeError:
        return False
    return True
