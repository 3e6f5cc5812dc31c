r"""Is a mathematical answer right? True, False, or None where it could not be scored.

    from dare_verify.math import verify

    verify(r"... so the answer is \boxed{\frac{1}{2}}", "0.5")   # True

The last `\boxed{}` counts (without any box, what follows `####`). Text, exact arithmetic and
structure are compared in the calling process; what that leaves open goes to killable workers, which
evaluate to 100 digits and ask math-verify last. None means a time-out, a dead worker or a gold that
cannot be read; it never means wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dare_verify.math.extract import final_answer
from dare_verify.math.verifier import MathVerifier, golds_of
from dare_verify.math.verifier import reward as _reward
from dare_verify.pool import WorkerPool

__all__ = [
    "MathVerifier",
    "WorkerPool",
    "check_golds",
    "default",
    "final_answer",
    "math_reward",
    "stats",
    "verify",
    "verify_batch",
]

default = MathVerifier()


def verify(completion: str, gold: object) -> bool | None:
    """Is the completion's final answer the gold? None where it could not be scored."""
    return default.verify_batch([completion], [gold])[0]


def verify_batch(
    completions: Sequence[str], golds: Sequence[object], *, rows: Sequence[object] | None = None
) -> list[bool | None]:
    """`verify` for many at once; `rows` are the names by which the log calls them."""
    return default.verify_batch(completions, golds, rows=rows)


def check_golds(golds: Sequence[object], *, deep: bool = False) -> list[tuple[int, str]]:
    """(row, reason) for every gold that does not verify against itself; see `MathVerifier`."""
    return default.check_golds(golds, deep=deep)


def stats() -> dict[str, int]:
    """Counts since the start: rows by the stage that decided them, and the workers' failures."""
    return default.stats()


def math_reward(
    completions: Sequence[Any], answer: Sequence[Any] | None = None, **columns: Any
) -> list[float | None]:
    """1.0 right, 0.0 wrong, None unscored, by the last box of each completion.

    The gold is the column `answer`, or `solution`, `gold`, `ground_truth` or `target`.
    """
    return _reward(default, completions, golds_of(answer, columns))
