"""Programs against their tests: what `dare_verify.code` offers, beside the other rewards."""

from dare_verify.code import (
    Ruling,
    Verdict,
    code_reward,
    extract_program,
    judge,
    judge_batch,
    make_code_reward,
)

__all__ = [
    "Ruling",
    "Verdict",
    "code_reward",
    "extract_program",
    "judge",
    "judge_batch",
    "make_code_reward",
]
