"""Rewards that a recipe can name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dare.config.named import imported
from dare_verify.math import check_golds, default, golds_of, reward
from dare_verify.math.extract import boxed_answer, marked_answer

_OPEN = r"\boxed{"
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}`; None where it is empty or never closed.

    An earlier box does not count: a response that was cut off inside its last one has no answer.
    All braces count, unlike those of `dare_verify.math.extract.boxed_answer`.
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


def check_math_golds(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """(row, reason) for every gold that does not verify against itself."""
    columns = {name: [record.get(name) for record in records] for name in (records or [{}])[0]}
    golds = golds_of(columns.get("answer"), columns)
    found = [(row, f"{reason} ({golds[row]!r})") for row, reason in check_golds(golds)]
    # Rows of another task are judged by their tests.
    return [one for one in found if golds[one[0]] is not None or not records[one[0]].get("tests")]


REWARDS = {
    "boxed": "dare.rewards:boxed_reward",
    "math": "dare.rewards:math_reward",
    "gsm8k": "dare.rewards:gsm8k_reward",
    "code": "dare.rewards.code:code_reward",
}


def reward_named(name: Any, field: str = "reward") -> Callable[..., Sequence[float | None]]:
    """A shipped reward by name, or `module:function` of your own."""
    if callable(name):
        return name
    shipped = f"use one of {', '.join(REWARDS)}, or "
    found: Callable[..., Sequence[float | None]] = imported(
        field, REWARDS.get(str(name), str(name)), "module:function", shipped
    )
    return found
