r"""Exact match of the last `\boxed{...}`: for answers that are integers or short strings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_OPEN = r"\boxed{"
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}`; None where it is empty or never closed.

    An earlier box does not count: a response that was cut off inside its last one has no answer.
    """
    start = text.rfind(_OPEN)
    if start < 0:
        return None
    depth = 1
    for place in range(start + len(_OPEN), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + len(_OPEN) : place].strip() or None
    return None


def matches(answer: str, gold: str) -> bool:
    """Equal as text or as integers: 007 is 7, but 7.0, 7_0 and full-width digits are not."""
    answer, gold = answer.strip(), gold.strip()
    if answer == gold:
        return True
    whole = _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold)
    return bool(whole) and int(answer) == int(gold)


def boxed_reward(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float]:
    """1.0 where the last box holds the answer."""
    rewards = []
    for completion, gold in zip(completions, answer, strict=True):
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        found = last_boxed(text)
        rewards.append(float(found is not None and matches(found, str(gold))))
    return rewards
