"""GSM8K's answers: a number after `####`, or in a box; whichever comes last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dare.rewards.math import default
from dare.rewards.math.extract import boxed_answer, marked_answer
from dare.rewards.math.reward import golds_of, reward


def gsm8k_answer(completion: str) -> str | None:
    """What follows the last `####`, or stands in a box that comes after it."""
    box = max(completion.rfind("\\boxed"), completion.rfind("\\fbox"))
    if box > completion.rfind("####"):
        return boxed_answer(completion)
    return marked_answer(completion)


def gsm8k_reward(
    completions: Sequence[Any], answer: Sequence[Any] | None = None, **columns: Any
) -> list[float | None]:
    """1.0 right, 0.0 wrong, None unscored; the gold may be the dataset's whole worked answer."""
    return reward(default, completions, golds_of(answer, columns), gsm8k_answer)
