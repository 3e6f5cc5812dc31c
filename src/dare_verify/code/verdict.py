"""What the judge says of a program, and what a program may use on one test."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dare_errors import require
from dare_sandbox.base import Limits


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
    """One program on one test; its `wall_s` are without those that it waited for a processor."""

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
