"""Calling reward functions, and refusing what cannot be a reward."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dare.errors import InvalidInput, require

_LOG = logging.getLogger(__name__)

RewardFunction = Callable[..., Sequence[float | None]]


class Rewards:
    """One outcome in [0, 1] a rollout from one or more functions in TRL's style.

    Each is called as f(prompts=..., completions=..., completion_ids=..., **columns) and returns
    one number a rollout, or None where it could not score it. A rollout that any function leaves
    unscored is unscored. Several functions are averaged by `weights`.
    """

    def __init__(
        self, functions: RewardFunction | Sequence[RewardFunction], weights: list[float] | None
    ) -> None:
        self._functions = [functions] if callable(functions) else list(functions)
        require(self._functions, "reward_funcs", functions, "give at least one reward function")
        for function in self._functions:
            require(callable(function), "reward_funcs", function, "must be callable")
        given = [1.0] * len(self._functions) if weights is None else list(weights)
        count = len(self._functions)
        require(len(given) == count, "reward_weights", given, f"must have {count} entries")
        require(sum(given) > 0 and min(given) >= 0, "reward_weights", given, "must not be negative")
        self._weights = [weight / sum(given) for weight in given]

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse a function that needs a column that is not there, before anything is generated."""
        known = {"prompts", "completions", "completion_ids", *columns}
        for function in self._functions:
            try:
                parameters = inspect.signature(function).parameters.values()
            except (TypeError, ValueError):
                continue
            kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            for parameter in parameters:
                needed = parameter.kind in kinds and parameter.default is inspect.Parameter.empty
                if needed and parameter.name not in known:
                    there = ", ".join(sorted(columns)) or "none"
                    fix = f"the data set has no such column; it has {there}"
                    raise InvalidInput(f"{_name(function)}({parameter.name})", None, fix)

    def check_rows(self, records: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
        """Rows that a function knows it cannot score, by its `check_rows(records)`; warned of."""
        found: list[tuple[int, str]] = []
        for function in self._functions:
            check = getattr(function, "check_rows", None)
            found += check(records) if check is not None else []
        for row, reason in found[:10]:
            _LOG.warning("row %d cannot be scored: %s", row, reason)
        if len(found) > 10:
            _LOG.warning("%d rows in all cannot be scored; drop or mend them", len(found))
        return found

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Any],
        columns: dict[str, list[Any]],
    ) -> list[float | None]:
        """One reward a rollout."""
        total: list[float | None] = [0.0] * len(completions)
        for function, weight in zip(self._functions, self._weights, strict=True):
            values = self._call(function, prompts, completions, completion_ids, columns)
            for place, value in enumerate(values):
                before = total[place]
                total[place] = None if value is None or before is None else before + weight * value
        # Weights that sum to one may still reach 1 + 1e-16.
        return [None if value is None else min(1.0, max(0.0, value)) for value in total]

    def _call(
        self,
        function: RewardFunction,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Any],
        columns: dict[str, list[Any]],
    ) -> list[float | None]:
        name = _name(function)
        try:
            given = {
                **columns,  # first: a column of the data with one of these names must not win
                "prompts": prompts,
                "completions": completions,
                "completion_ids": completion_ids,
            }
            answer = function(**_accepted(function, given))
        except Exception as error:
            fix = "the reward function raised; return None for rollouts it cannot score"
            raise InvalidInput(f"reward function {name}", repr(error), fix) from error
        fix = f"must return a list with one reward for each of {len(completions)} rollouts"
        listed = hasattr(answer, "__len__") and not isinstance(answer, (str, bytes, Mapping))
        sized = listed and len(answer) == len(completions)
        shown = len(answer) if hasattr(answer, "__len__") else answer
        require(sized, f"reward function {name}", shown, fix)
        values: list[float | None] = []
        for place, value in enumerate(answer):
            try:
                words = isinstance(value, (str, bytes))
                number = None if value is None else math.nan if words else float(value)
            except (TypeError, ValueError):
                number = math.nan
            if number is not None and not (math.isfinite(number) and 0.0 <= number <= 1.0):
                fix = "must be in [0, 1], or None where the rollout could not be scored"
                raise InvalidInput(f"reward function {name}, rollout {place}", value, fix)
            values.append(number)
        return values


def _accepted(function: RewardFunction, columns: dict[str, Any]) -> dict[str, Any]:
    """What the function takes by name; all of it where it takes **kwargs."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return columns
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return columns
    return {name: values for name, values in columns.items() if name in parameters}


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
