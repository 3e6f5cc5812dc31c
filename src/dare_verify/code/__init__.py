"""Judging programs: right, wrong, or not judged, with nothing to reach and nothing to patch.

The expected outputs never enter the process that runs the program. What it prints or returns comes
out as plain data and is compared here; a data set's own test code runs in a second process.
"""

from dare_verify.code.judge import judge, judge_batch
from dare_verify.code.reward import code_reward, extract_program, make_code_reward
from dare_verify.code.trials import Ruling, Verdict

__all__ = [
    "Ruling",
    "Verdict",
    "code_reward",
    "extract_program",
    "judge",
    "judge_batch",
    "make_code_reward",
]
