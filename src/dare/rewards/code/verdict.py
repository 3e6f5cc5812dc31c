"""What the judge says of a program."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
