"""Calling reward functions as TRL does, and refusing what cannot be a reward."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import math
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dare.errors import InvalidInput, require
from dare.runs.folder import plain

_LOG = logging.getLogger(__name__)
_TEXTS = (str, bytes, bytearray, memoryview)  # float() reads a number from some of them
_LARGEST = 1e30  # rewards are kept in float32, and squared for a deviation

RewardFunction = Callable[..., Sequence[float | None] | Awaitable[Sequence[float | None]]]
Values = list[float | None]


@dataclass
class Scored:
    """What the functions said of some rollouts, one entry a rollout."""

    reward: Values
    """What is trained on; None where no function gave a value, or one failed."""
    success: Values
    """The outcome in [0, 1] that difficulty is made of; None where it cannot be told."""
    by_function: dict[str, Values] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """What functions gave to `log_metric`."""
    extra: dict[str, list[Any]] = field(default_factory=dict)
    """What they gave to `log_extra`, a list with an entry a rollout."""


class Rewards:
    """One reward a rollout from one or more functions in TRL's style.

    Each is called as f(prompts=..., completions=..., completion_ids=..., trainer_state=...,
    log_metric=..., log_extra=..., **columns) and returns one number a rollout, or None where it
    has nothing to say. The reward is the sum of what the functions gave, times their `weights`.
    Coroutine functions run side by side. A function may name the columns that it `judges` by: None
    for a row that has one of them is then a check that failed, and leaves the rollout unscored.

    `success` is the rule for difficulty: a number that a reward must reach, or a function that is
    also given `rewards`. Without one, rewards in [0, 1] are averaged by weight.
    """

    def __init__(
        self,
        functions: RewardFunction | Sequence[RewardFunction],
        weights: Sequence[float] | None = None,
        success: float | RewardFunction | None = None,
        state: Callable[[], Any] = lambda: None,
    ) -> None:
        given = [functions] if callable(functions) else list(functions)
        require(given, "reward_funcs", functions, "give at least one reward function")
        self._functions: dict[str, RewardFunction] = {}
        for function in given:
            require(callable(function), "reward_funcs", function, "must be callable")
            name, count = _name(function), 1
            while name in self._functions:
                count += 1
                name = f"{_name(function)}_{count}"
            self._functions[name] = function
        count = len(given)
        self._weights = [1.0] * count if weights is None else [float(one) for one in weights]
        proper = all(map(math.isfinite, self._weights)) and any(self._weights)
        require(
            len(self._weights) == count, "reward_weights", weights, f"must have {count} entries"
        )
        require(proper, "reward_weights", weights, "must be finite, and not all 0")
        self.rule, self._state = success, state

    @property
    def names(self) -> str:
        """Those of the functions."""
        return ", ".join(self._functions)

    def check_columns(
        self,
        columns: Sequence[str],
        field: str = "data",
        lacks: Mapping[str, int] | None = None,
        called: str = "data",
    ) -> None:
        """Refuse a function that needs a column that is not there, before anything is generated;
        `lacks` says which is the first row without a column that others have, `field` and
        `called` which data they are, before a row's number and in a sentence."""
        known = {"prompts", "completions", "completion_ids", "rewards", *columns}
        known |= {"trainer_state", "log_metric", "log_extra"}
        for name, parameter in self._parameters():
            needed = parameter.default is inspect.Parameter.empty
            if needed and parameter.name not in known:
                there = ", ".join(sorted(columns)) or "none"
                fix = f"the {called} has no such column; it has {there}"
                raise InvalidInput(f"{name}({parameter.name})", None, fix)
            judged = getattr(_inner(self._functions.get(name)), "judges", ())
            row = (lacks or {}).get(parameter.name)
            if needed and row is not None and parameter.name not in judged:
                fix = f"the row has no such column, and {name} needs it: fill it in, None if that "
                fix += "is meant, or drop the row"
                raise InvalidInput(f"{field}[{row}]", parameter.name, fix)

    def named_columns(self) -> set[str]:
        """What functions ask for by name, columns of the data among it."""
        return {parameter.name for _, parameter in self._parameters()}

    def _parameters(self) -> Iterator[tuple[str, inspect.Parameter]]:
        """(function's name, parameter) of all that can be given by name."""
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        rule = {"success_threshold": self.rule} if callable(self.rule) else {}
        for name, function in {**self._functions, **rule}.items():
            try:
                parameters = inspect.signature(function).parameters.values()
            except (TypeError, ValueError):
                continue
            yield from ((name, one) for one in parameters if one.kind in kinds)

    def check_rows(
        self, records: Sequence[Mapping[str, Any]], rows: Sequence[int] | None = None
    ) -> list[tuple[int, str]]:
        """Rows that a function knows it cannot score, by its `check_rows(records)`; warned of.

        `rows` says which row of the user's data each record was.
        """
        found: list[tuple[int, str]] = []
        for function in self._functions.values():
            check = getattr(function, "check_rows", None)
            found += check(records) if check is not None else []
        if rows is not None:
            found = sorted((rows[place], reason) for place, reason in found)
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
        rows: Sequence[int] | None = None,
    ) -> Scored:
        """The reward of each rollout, and what came of it; `rows` are those of the data set."""
        given = {
            **columns,  # first: a column of the data with one of these names must not win
            "prompts": prompts,
            "completions": completions,
            "completion_ids": completion_ids,
        }
        scored = Scored([], [])
        tools = self._tools(scored, len(completions))
        answers: dict[str, Any] = {}
        try:
            for name, function in self._functions.items():
                answers[name] = _begin(name, function, given, tools)
            for name, answer in answers.items():
                function, field = self._functions[name], f"reward function {name}"
                with _blaming(name, function):
                    found = _result(answer)
                    values = _values(field, function, found, len(completions), rows)
                scored.by_function[name] = values
        finally:
            for answer in answers.values():  # of use only where another function has failed
                if isinstance(answer, _Pending):
                    answer.future.cancel()
        self._add_up(scored, columns, len(completions))
        if callable(self.rule):
            with_rewards = {**given, "rewards": scored.reward}
            name, rule = "success_threshold", self.rule
            told = _begin(name, rule, with_rewards, tools)
            with _blaming(name, rule):
                told = _result(told)
                scored.success = _values(name, rule, told, len(completions), rows, most=1.0)
        return scored

    def _tools(self, scored: Scored, count: int) -> dict[str, Any]:
        def log_metric(name: str, value: float) -> None:
            number = _number(value)
            require(number is not None, f"log_metric({name!r})", value, "must be a finite number")
            scored.metrics.setdefault(str(name), []).append(number or 0.0)

        def log_extra(column: str, values: Sequence[Any]) -> None:
            size, fix = len(values), f"must have one value for each of {count} rollouts"
            require(size == count, f"log_extra({column!r})", size, fix)
            scored.extra[str(column)] = _written(f"log_extra({str(column)!r})", list(values))

        return {"trainer_state": self._state(), "log_metric": log_metric, "log_extra": log_extra}

    def _add_up(self, scored: Scored, columns: Mapping[str, Sequence[Any]], count: int) -> None:
        """Rewards from the values of the functions, and success where no function tells it."""
        values_of = scored.by_function.values()
        weighted = list(zip(self._functions.values(), values_of, self._weights, strict=True))
        for row in range(count):
            values = [(weight, one[row]) for _, one, weight in weighted if weight]
            pairs = [(weight, value) for weight, value in values if value is not None]
            failed = any(
                one[row] is None and _judges(function, columns, row)
                for function, one, _ in weighted
            )
            if failed or not pairs:
                scored.reward.append(None)
                scored.success.append(None)
                continue
            reward = sum(weight * value for weight, value in pairs)
            scored.reward.append(reward)
            if isinstance(self.rule, (int, float)):
                scored.success.append(float(reward >= self.rule))
            elif all(weight > 0 and 0.0 <= value <= 1.0 for weight, value in pairs):
                # Weights that sum to one may still reach 1 + 1e-16.
                scored.success.append(min(1.0, reward / sum(weight for weight, _ in pairs)))
            else:
                scored.success.append(None)


class _Pending:
    """An awaitable answer, running on the loop that all calls share: clients may be kept on it."""

    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, answer: Awaitable[Any]) -> None:
        if _Pending._loop is None:
            _Pending._loop = asyncio.new_event_loop()
            threading.Thread(target=_Pending._loop.run_forever, daemon=True).start()

        async def wait() -> Any:
            try:
                return await answer
            except SystemExit as error:  # it would end the loop, and nobody would hear of it
                raise RuntimeError(repr(error)) from error

        self.future = asyncio.run_coroutine_threadsafe(wait(), _Pending._loop)


def _begin(name: str, function: Any, given: dict[str, Any], tools: dict[str, Any]) -> Any:
    """The function's answer, or one that is under way. It gets copies: what it does to a prompt or
    a column must not reach the data."""
    with _blaming(name, function):
        answer = function(**_accepted(function, {**_copied(given), **tools}))
        return _Pending(answer) if inspect.isawaitable(answer) else answer


def _result(answer: Any) -> Any:
    return answer.future.result() if isinstance(answer, _Pending) else answer


@contextmanager
def _blaming(name: str, function: Any) -> Iterator[None]:
    """What the function raises names it; sys.exit() too would end the run as if it were done."""
    try:
        yield
    except (KeyboardInterrupt, InvalidInput):
        raise
    except BaseException as error:
        raise _raised(name, function, error) from error


def _raised(name: str, function: Any, error: BaseException) -> InvalidInput:
    """What the function raised, and where in its own file."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__]
    code = getattr(_inner(function), "__code__", None)
    own = [one for one in frames if code is not None and one.filename == code.co_filename]
    place = (own or frames)[-1:]
    where = "".join(f" in {one.filename}, line {one.lineno}" for one in place)
    fix = f"was raised{where}; return None for rollouts that it cannot score"
    return InvalidInput(f"reward function {name}", error, fix)


def _written(field: str, values: list[Any]) -> list[Any]:
    """The values as samples.jsonl will have them: later nobody would know whose they were."""
    try:
        kept: list[Any] = json.loads(json.dumps(plain(values)))
        return kept
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() too would end the run as if it were done
        fix = f"cannot be written as JSON ({type(error).__name__}); give texts or numbers"
        raise InvalidInput(field, values, fix) from error


def _values(
    field: str,
    function: Any,
    answer: Any,
    count: int,
    rows: Sequence[int] | None,
    most: float | None = None,
) -> Values:
    """The answer as numbers and None; refused unless there is one a rollout, in their order."""
    listed: list[Any] | None = None
    shown = answer
    try:
        if not isinstance(answer, (*_TEXTS, Mapping, Set)):
            shown = len(answer)
            listed = list(answer) if shown == count else None
    except Exception:  # of whatever class: it is no list
        shown = answer
    if listed is None or len(listed) != count:
        fix = f"must return a list with one reward for each of {count} rollouts"
        raise InvalidInput(field, shown, f"{fix}{_defined(function)}")
    values: Values = []
    for place, value in enumerate(listed):
        number = None if value is None else _number(value)
        wrong = value is not None and number is None
        if wrong or (number is not None and most is not None and not 0 <= number <= most):
            rng = "a finite number" if most is None else "in [0, 1]"
            row = "" if rows is None else f" (row {rows[place]} of the data)"
            fix = f"must be {rng}, or None where there is nothing to say of the rollout"
            raise InvalidInput(
                f"{field}, rollout {place}{row}", value, f"{fix}{_defined(function)}"
            )
        values.append(number)
    return values


def _number(value: Any) -> float | None:
    """The value as a finite number, None where it is none."""
    try:
        # numpy and torch would drop the imaginary part
        none = isinstance(value, _TEXTS) or "complex" in str(getattr(value, "dtype", ""))
        number = math.nan if none else float(value)
    except Exception:  # objects of users raise what they like
        return None
    return number if abs(number) < _LARGEST else None


def _defined(function: Any) -> str:
    """Where the function is written, as far as it is known."""
    inner = _inner(function)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return "" if code is None else f"; see {code.co_filename}, line {code.co_firstlineno}"


def _judges(function: Any, columns: Mapping[str, Sequence[Any]], row: int) -> bool:
    """Whether the row has something that the function promised to judge by."""
    named = getattr(_inner(function), "judges", ())
    return any(name in columns and columns[name][row] is not None for name in named)


def _copied(value: Any) -> Any:
    """Lists, dictionaries and arrays anew; what they hold at the bottom is shared."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_copied(one) for one in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def _accepted(function: RewardFunction, columns: dict[str, Any]) -> dict[str, Any]:
    """What the function takes by name; all of it where it takes **kwargs."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return columns
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return columns
    return {name: values for name, values in columns.items() if name in parameters}


def _inner(function: Any) -> Any:
    """The function that a partial or a decorator with `wraps` stands for."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function) if callable(function) else function


def _name(function: Any) -> str:
    return str(getattr(_inner(function), "__name__", type(function).__name__))
