"""Mathematical answers: what `dare_verify.math` offers, beside the other rewards."""

from dare_verify.math import (
    MathVerifier,
    WorkerPool,
    check_golds,
    default,
    final_answer,
    math_reward,
    stats,
    verify,
    verify_batch,
)

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
