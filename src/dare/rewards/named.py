"""Reward functions by name, for recipes and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from dare.errors import InvalidInput

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
    module, _, function = REWARDS.get(str(name), str(name)).partition(":")
    try:
        found: Callable[..., Sequence[float | None]] = getattr(import_module(module), function)
        return found
    except (ImportError, AttributeError, ValueError) as error:
        fix = f"use one of {', '.join(REWARDS)}, or 'module:function' ({error})"
        raise InvalidInput(field, name, fix) from None
