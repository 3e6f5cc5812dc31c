"""What the judge says, whose fault it is, and what it never does."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dare.errors import InvalidInput
from dare_sandbox import Ended, Execution, Job, Running, Sandbox, open_sandbox
from dare_verify.code import Verdict, judge, judge_batch
from dare_verify.code.trials import Candidate, Rules, Ruling, Trial, payload, try_assert

DOUBLE = "def f(x):\n    return 2 * x\n"
SUM = [{"input": "1 2", "output": "3"}, {"input": "3 4", "output": "7"}]


@pytest.fixture(scope="module")
def room() -> Sandbox:
    try:
        return open_sandbox("auto")
    except InvalidInput as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("room")
class TestVerdicts:
    def test_fields_of_an_accepted_program(self) -> None:
        found = judge("print(sum(map(int, input().split())))", SUM)
        assert (found.passed, found.verdict) == (True, "accepted")
        assert (found.tests_passed, found.tests_run, found.failed_test) == (2, 2, None)
        assert found.stdout == "7\n"
        assert found.cpu_s > 0

    def test_stops_at_the_first_failure(self) -> None:
        found = judge("print(3)", [*SUM, SUM[0]])
        assert (found.passed, found.verdict) == (False, "wrong_answer")
        assert (found.tests_passed, found.tests_run, found.failed_test) == (1, 2, 1)

    def test_runs_all_tests_when_asked(self) -> None:
        found = judge("print(3)", [*SUM, SUM[0]], stop_early=False)
        assert found.passed is False
        assert (found.tests_passed, found.tests_run, found.failed_test) == (2, 3, 1)

    def test_all_tests_together_have_a_limit(self) -> None:
        slow = "import time\nwhile time.process_time() < 0.3: pass\nprint(3)"
        found = judge(slow, [SUM[0]] * 8, total_limit_s=0.5)
        assert (found.verdict, found.tests_run) == ("time_limit", 2)

    def test_patience_for_all_tests_counts_what_a_program_took_not_the_machine(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        judging = sys.modules["dare_verify.code.judge"]  # the package has a function of that name
        clock = iter(range(0, 1 << 20, 100))  # between any two looks at it 100 seconds pass
        monkeypatch.setattr(judging.time, "monotonic", lambda: float(next(clock)))
        quick, sleepy = (Trial(Ruling.ACCEPTED, wall_s=seconds) for seconds in (0.1, 9.0))
        assert judging._run(lambda _: quick, SUM * 20, True, 4.0).passed
        found = judging._run(lambda _: sleepy, SUM * 20, True, 4.0)
        assert (found.verdict, found.tests_run) == ("time_limit", 3)  # 27 s of 20

    @pytest.mark.usefixtures("busy_machine")
    def test_what_a_program_waited_for_a_processor_is_told(self, room: Sandbox) -> None:
        work = "import time\nwhile time.process_time() < 0.8: pass\n"
        found = room.run(Job(work))
        assert found.waited_s > 0.4  # four others on every core
        assert found.wall_s - found.waited_s < 0.5 * found.wall_s
        found = room.run(Job("import time; time.sleep(1)"))
        assert found.wall_s - found.waited_s > 0.8  # not 0: what sleeps does not wait

    @pytest.mark.usefixtures("busy_machine")
    @pytest.mark.parametrize("kind", ["stdin", "function"])
    def test_a_busy_machine_gives_the_verdicts_of_an_idle_one(self, kind: str) -> None:
        """Waiting for a processor counts for no limit; sleeping does, against one of its own."""
        work = "import time\nwhile time.process_time() < 0.4: pass\n"
        sleep = "import time; time.sleep(100)\n"
        tests: list[Any] = SUM[:1]
        if kind == "function":
            work, sleep = (
                "def f():\n    " + text.replace("\n", "\n    ") for text in (work, sleep)
            )
            work, sleep = (text.rstrip() + "\n    return 3\n" for text in (work, sleep))
            tests = [{"fn": "f", "args": [], "output": 3}]
        else:
            work, sleep = work + "print(3)", sleep + "print(3)"
        limits = {"time_limit_s": 0.8, "wall_limit_s": 2.0, "kind": kind}
        assert judge(work, tests, **limits).verdict == "accepted"
        assert judge(work.replace("0.4", "5"), tests, **limits).verdict == "time_limit"
        started = time.monotonic()
        assert judge(sleep, tests, **limits).verdict == "time_limit"
        assert time.monotonic() - started < 60  # far from 100

    def test_output_may_be_a_list_of_lines(self) -> None:
        test = {"input": ["1", "2"], "output": ["1", "2"]}
        assert judge("print(input())\nprint(input())", [test]).passed

    @pytest.mark.parametrize("program", [None, "", "  \n"])
    def test_no_program(self, program: str | None) -> None:
        found = judge(program, SUM)
        assert (found.passed, found.verdict) == (False, "no_program")

    def test_text_that_is_no_text(self) -> None:
        assert judge("print('\ud800')", SUM).verdict == "runtime_error"
        assert judge("print(1)\x00", SUM).verdict == "runtime_error"

    def test_byte_order_mark(self) -> None:
        assert judge("\ufeff" + DOUBLE, [{"fn": "f", "args": [2], "output": 4}], kind="function")

    def test_batch_keeps_the_order(self) -> None:
        items = [
            {"program": f"print({n % 3})", "tests": [{"input": "", "output": "0"}]}
            for n in range(12)
        ]
        found = judge_batch(items, workers=4)
        assert [verdict.passed for verdict in found] == [n % 3 == 0 for n in range(12)]

    def test_from_many_threads(self) -> None:
        found: list[Verdict] = []
        test = {"fn": "f", "args": [2], "output": 4}
        threads = [
            threading.Thread(target=lambda: found.append(judge(DOUBLE, [test], kind="function")))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [verdict.passed for verdict in found] == [True] * 4

    @pytest.mark.parametrize(
        ("args", "output"),
        [
            ([[1, (2, 3), {4}]], [1, (2, 3), {4}]),
            ([{1: None, (2,): b"x"}], {1: None, (2,): b"x"}),
            ({"x": 10**5000}, 10**5000),
            ([float("nan")], float("nan")),
            ([complex(1, 2)], complex(1, 2)),
            (["\ud800"], "\ud800"),
            ([None], None),
        ],
        ids=range(7),
    )
    def test_any_plain_data_goes_in_and_out(self, args: Any, output: Any) -> None:
        test = {"fn": "f", "args": args, "output": output}
        assert judge("def f(x):\n    return x", [test], kind="function").passed is True

    def test_a_thousand_assertions_are_quick(self, room: Sandbox) -> None:
        code = (
            "def check(candidate):\n    for n in range(1000):\n        assert candidate(n) == 2*n"
        )
        ruling = try_assert(room, DOUBLE, {"code": code, "entry_point": "f"}, Rules())
        assert ruling.ruling == "accepted"
        assert ruling.cpu_s < 1.0

    def test_prelude_setup_and_helpers(self) -> None:
        test = {
            "prelude": "from math import gcd",
            "setup": "expected = helper(3)",
            "helpers": "def helper(n):\n    return 2 * n",
            "code": "assert f(6, 12) == expected",
        }
        assert judge("def f(a, b):\n    return gcd(a, b)", [test], kind="assert").passed is True


NO_TESTS: list[tuple[str, Any]] = [
    ("stdin", []),
    ("stdin", None),
    ("stdin", "input"),
    ("stdin", {"input": "1", "output": "2"}),
    ("stdin", [{"input": "1"}]),
    ("stdin", ["1"]),
    ("function", [{"fn": "f", "args": [1]}]),
    ("function", [{"args": [1], "output": 2}]),
    ("assert", [{"entry_point": "f"}]),
]


@pytest.mark.parametrize(("kind", "tests"), NO_TESTS)
def test_what_is_no_test_is_refused_before_anything_runs(kind: str, tests: Any) -> None:
    with pytest.raises(InvalidInput, match="tests"):
        judge(DOUBLE, tests, kind=kind)
    with pytest.raises(InvalidInput, match=r"items\[0\].tests"):
        judge_batch([{"program": DOUBLE, "tests": tests, "kind": kind}])


@pytest.mark.parametrize(
    ("items", "rest"),
    [
        ("program", {}),
        (["program"], {}),
        ([{"program": DOUBLE}], {}),
        ([{"program": 5, "tests": SUM}], {}),
        ([{"program": DOUBLE, "tests": SUM, "time_limit": 1}], {}),
        ([DOUBLE, DOUBLE], {"tests": [SUM]}),
        ([DOUBLE, DOUBLE], {"tests": [SUM, SUM], "kind": ["stdin"]}),
        ([DOUBLE], {"tests": []}),
    ],
)
def test_what_is_no_batch_is_refused(items: Any, rest: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        judge_batch(items, **rest)


@pytest.mark.usefixtures("room")
def test_a_batch_may_be_given_in_three_ways() -> None:
    tests = [{"fn": "f", "args": [3], "output": 6}]
    items = [{"program": text, "tests": tests, "kind": "function"} for text in (DOUBLE, "f = 1")]
    programs = [DOUBLE, "f = 1"]
    expected = [True, False]
    for found in (
        judge_batch(items),
        judge_batch(programs, [tests, tests], kind="function"),
        judge_batch(programs, tests, kind=["function", "function"]),
    ):
        assert [verdict.passed for verdict in found] == expected
    assert judge_batch([]) == judge_batch([], []) == []


BAD_TESTS: list[tuple[str, Any]] = [
    ("stdin", [{"input": "1", "output": None}]),
    ("stdin", [{"input": {"a": 1}, "output": "1"}]),
    ("function", [{"fn": None, "args": [1], "output": 2}]),
    ("function", [{"fn": "f", "args": 1, "output": 2}]),
    ("function", [{"fn": "f", "args": [object()], "output": 2}]),
    ("function", [{"fn": "f", "args": [1], "output": object()}]),
    ("assert", [{"code": "assert f(1) ==", "entry_point": "f"}]),
    ("assert", [{"code": None, "entry_point": "f"}]),
    ("assert", [{"code": "import no_such_module\nassert f(1) == 2", "entry_point": "f"}]),
    ("assert", [{"code": "assert True", "entry_point": "f"}]),
    ("assert", [{"code": "def check(candidate):\n    pass", "entry_point": "f"}]),
    ("assert", [{"code": "x = 1\nassert f(lambda: x) == 2", "entry_point": "f"}]),
    ("assert", [{"code": "f(1)\nimport os\nos._exit(0)", "entry_point": "f"}]),
    ("assert", [{"code": "f(1)\nwhile True: pass", "entry_point": "f"}]),
]


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize(("kind", "tests"), BAD_TESTS)
def test_a_bad_test_is_not_the_programs_fault(
    kind: str, tests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dare_sandbox import Limits
    from dare_verify.code import trials

    monkeypatch.setattr(trials, "_CHECKER", Limits(wall_s=5.0, cpu_s=1.0, memory_mb=512))
    found = judge(DOUBLE, tests, kind=kind)
    assert (found.passed, found.verdict) == (None, "judge_error")
    assert found.message


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "stdout"},
        {"time_limit_s": 0},
        {"wall_limit_s": 0},
        {"memory_mb": 1},
        {"sandbox": "cardboard"},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        judge(DOUBLE, SUM, **wrong)


CHECKER = payload("wire", "checker")


class Broken:
    """A sandbox that fails for some time."""

    name = "broken"

    def __init__(self, failures: int, then: Sandbox | None = None) -> None:
        self.failures, self.then = failures, then

    def run(self, job: Job) -> Execution:
        return self.start(job).wait()

    def start(self, job: Job) -> Running:
        self.failures -= 1
        if self.failures < 0 and self.then:
            return self.then.start(job)
        return Lost()

    def close(self) -> None:
        pass


class Lost:
    channel: socket.socket | None = None

    def wait(self) -> Execution:
        return Execution(Ended.LOST, 0, b"", b"", 0.0, 0.0, 0.0, "the power failed")

    def kill(self) -> None:
        pass

    def waited_s(self) -> float:
        return 0.0


class Slow:
    """A sandbox whose processes start late, as on a machine where thousands of others start."""

    name = "slow"

    def __init__(self, room: Sandbox, seconds: float) -> None:
        self.room, self.seconds = room, seconds

    def run(self, job: Job) -> Execution:
        return self.room.run(job)

    def start(self, job: Job) -> Running:
        source = f"import time; time.sleep({self.seconds})\n{job.source}"
        return self.room.start(replace(job, source=source))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("kind", ["function", "assert"])
def test_a_slow_start_is_not_the_programs_time(kind: str, room: Sandbox) -> None:
    limits: dict[str, Any] = {"time_limit_s": 0.5, "wall_limit_s": 0.7}
    found = judge(DOUBLE, TESTS[kind], kind=kind, sandbox=Slow(room, 1.0), **limits)
    sleeper = "import time\ntime.sleep(3)\n" + DOUBLE
    slept = judge(sleeper, TESTS[kind], kind=kind, sandbox=room, **limits)
    assert (found.verdict, slept.verdict) == ("accepted", "time_limit"), (found, slept)


@pytest.mark.parametrize("kind", ["function", "assert"])
def test_a_start_that_never_ends_leaves_the_program_unscored(
    kind: str, room: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dare_verify.code.trials.START_S", 0.3)
    found = judge(DOUBLE, TESTS[kind], kind=kind, sandbox=Slow(room, 600.0))
    assert found.passed is None, found
    assert "started no process in 0.3 s" in found.message


class Mute(Slow):
    """A sandbox whose processes end before they say a word."""

    def start(self, job: Job) -> Running:
        return self.room.start(replace(job, source="raise MemoryError"))


@pytest.mark.parametrize("kind", ["function", "assert"])
def test_a_process_that_ends_before_it_speaks_is_told_why(kind: str, room: Sandbox) -> None:
    found = judge(DOUBLE, TESTS[kind], kind=kind, sandbox=Mute(room, 0.0))
    assert found.verdict == "memory_limit", found


class Exploding(Broken):
    def start(self, job: Job) -> Running:
        raise OSError("no more of anything")


TESTS: dict[str, list[dict[str, Any]]] = {
    "stdin": [{"input": "", "output": ""}],
    "function": [{"fn": "f", "args": [1], "output": 2}],
    "assert": [{"code": "assert f(1) == 2", "entry_point": "f"}],
}


@pytest.mark.parametrize("kind", list(TESTS))
@pytest.mark.parametrize("make", [Broken, Exploding])
def test_a_failing_sandbox_leaves_the_program_unscored(
    kind: str, make: Callable[[int], Sandbox]
) -> None:
    found = judge(DOUBLE, TESTS[kind], kind=kind, sandbox=make(1000))
    assert (found.passed, found.verdict) == (None, "judge_error")


@pytest.mark.parametrize("kind", list(TESTS))
def test_a_sandbox_that_fails_once_gets_a_second_chance(kind: str, room: Sandbox) -> None:
    assert judge(DOUBLE, TESTS[kind], kind=kind, sandbox=Broken(1, room)).passed is True


def test_a_checker_that_is_lost_leaves_the_program_unscored(room: Sandbox) -> None:
    class OnlyTheProgram(Broken):
        def start(self, job: Job) -> Running:
            return Lost() if job.source == CHECKER else room.start(job)

    found = judge(DOUBLE, TESTS["assert"], kind="assert", sandbox=OnlyTheProgram(0))
    assert found.passed is None


def test_the_expected_values_never_enter_the_programs_process(
    room: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that is sent to a program's process is recorded; the answer is not in it."""
    sent: list[str] = []

    class Watched(Broken):
        def start(self, job: Job) -> Running:
            if job.source != CHECKER:
                sent.append(f"{job.source}{job.stdin!r}")
            return room.start(job)

    ask = Candidate.ask

    def watched(self: Candidate, request: bytes, *more: Any) -> bytes:
        sent.append(request.decode())
        return ask(self, request, *more)

    monkeypatch.setattr(Candidate, "ask", watched)
    answer = "secret-answer-4711"
    program = "def f(x):\n    return '-'.join(['secret', 'answer', '4711'])\nprint(f(1))"
    code = f"def check(candidate):\n    assert candidate(1) == {answer!r}"
    for kind, test in (
        ("stdin", {"input": "1", "output": answer}),
        ("function", {"fn": "f", "args": [1], "output": answer}),
        ("assert", {"code": code, "entry_point": "f"}),
    ):
        assert judge(program, [test], kind=kind, sandbox=Watched(0)).passed is True
    assert len(sent) == 3 + 2 + 2
    assert not any(answer in text for text in sent)


class WithoutChannel:
    """A sandbox like a remote one: text in, text out."""

    name, channels = "remote", False

    def __init__(self, room: Sandbox) -> None:
        self.room = room

    def start(self, job: Job) -> Running:
        assert not job.channel
        return self.room.start(job)

    def run(self, job: Job) -> Execution:
        return self.start(job).wait()

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("def f(x):\n    print('noise', end='')\n    return {x: (1,)}", "accepted"),
        ("def f(x):\n    return {x: (2,)}", "wrong_answer"),
        ("def f(x):\n    return object()", "wrong_answer"),
        ("def f(x):\n    raise ValueError", "runtime_error"),
        ("import os\ndef f(x):\n    os._exit(0)", "runtime_error"),
        ("import sys\nsys.exit(0)", "runtime_error"),
        ("def f(x:", "runtime_error"),
        ("def f(x):\n    while True: pass", "time_limit"),
    ],
)
def test_functions_without_a_channel(room: Sandbox, program: str, verdict: str) -> None:
    test = {"fn": "f", "args": [5], "output": {5: [1]}}
    options: dict[str, Any] = {"kind": "function", "time_limit_s": 1.0}
    found = judge(program, [test], sandbox=WithoutChannel(room), **options)
    assert found.verdict == verdict, found


def test_test_code_without_a_channel_is_refused(room: Sandbox) -> None:
    with pytest.raises(InvalidInput, match="on this machine"):
        judge(DOUBLE, TESTS["assert"], kind="assert", sandbox=WithoutChannel(room))
