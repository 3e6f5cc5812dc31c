"""Plain data across the boundary, and what counts as the same answer."""

from __future__ import annotations

import collections
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare_verify.code.answers import same
from dare_verify.code.wire import Unsupported, dump, load

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
PLAIN = st.recursive(
    ATOMS | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.sets(KEYS)
        | st.frozensets(KEYS)
    ),
    max_leaves=20,
)


def exactly(first: Any, second: Any) -> bool:
    return type(first) is type(second) and first == second


def crossed(found: Any, expected: Any) -> bool:
    """Whether an answer is right after it came across the boundary."""
    return same(load(dump(found), inert=True), expected)


@given(PLAIN)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    assert exactly(load(dump(value)), value)
    assert crossed(value, value)


@pytest.mark.parametrize(
    "value",
    [10**10_000, -(2**63), 2**63, math.inf, -0.0, "\ud800", {1: {(1, 2): b"\x00"}}],
    ids=range(7),
)
def test_awkward_values_come_back(value: Any) -> None:
    assert exactly(load(dump(value)), value)


def test_not_a_number_comes_back() -> None:
    assert math.isnan(load(dump(math.nan)))
    assert crossed(math.nan, math.nan)
    assert not crossed(0.0, math.nan)


class Int(int):
    pass


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [Int(1), Text("a"), object(), len, [1, [Int(2)]], {"a": Int(1)}])
def test_own_types_are_not_plain_data(value: Any) -> None:
    with pytest.raises(Unsupported):
        dump(value)


@pytest.mark.parametrize(
    "text",
    [
        *('{"zz":1}', '{"t":1}', '{"s":[[1]]}', '{"i":"x"}', '{"o":["f"]}', "[" * 10**5, "", "{}"),
        *('{"a":1,"b":2}', '{"r":[0,1e9,1]}', '{"r":[0,99999999999,1]}', '{"ty":"exec"}'),
        "9" * 5000,
    ],
    ids=range(13),
)
def test_a_forged_message_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a message"):
        load(text)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((1, 2), [1, 2]),
        ([1, 2], (1, 2)),
        (collections.deque([1]), [1]),
        (range(3), [0, 1, 2]),
        ({"a": 1}.values(), [1]),
        (iter([1]), [1]),
        (2.0, 2),
        (2, 2.0),
        (0.1 + 0.2, 0.3),
        (1 / 3, 0.333333),
        (frozenset({1}), {1}),
        ({frozenset({1}), 2}, {frozenset({1}), 2}),
        ({0: False, 2.0: 1}, {0: False, 2: 1}),
        ({}, {}),
        (set(), set()),
        ({1: (2,)}, {1: [2]}),
        (1, 1 + 0j),
        (b"a", bytearray(b"a")),
    ],
)
def test_the_same_answer(found: Any, expected: Any) -> None:
    assert crossed(found, expected)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (True, 1),
        (1, True),
        (0, False),
        (None, 0),
        (0, None),
        ("1", 1),
        (1, "1"),
        (2.0000001, 2),
        (1e20, 10**20),
        (10**300, 1.5),
        (math.nan, 1.5),
        (math.inf, 1.5),
        ([1, 2], [1, 2, 3]),
        ([True], [1]),
        ({1, 2}, [1, 2]),
        ([1, 2], {1, 2}),
        ({True}, {1}),
        ({1: 2}, {"1": 2}),
        ({True: 2}, {1: 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({1}, {1, 2}),
        ({1, 2}, {1}),
        ([("a", 1)], {"a": 1}),
        ({"a": 1}, [("a", 1)]),
        ("ab", ["a", "b"]),
        (b"a", "a"),
        ([], None),
    ],
)
def test_another_answer(found: Any, expected: Any) -> None:
    assert not crossed(found, expected)


def test_a_forged_set_may_repeat_but_not_replace() -> None:
    assert not same(load('{"s":[1,1]}', inert=True), {1, 2})
    assert not same(load('{"s":[1,1]}', inert=True), {1})
    assert not same(load('{"s":[[1],2]}', inert=True), {1, 2})
    assert not same(load('{"d":[[1,1],[2,2]]}', inert=True), {1: 2})


def test_keys_that_hash_alike_cost_nothing() -> None:
    alike = [n * (2**61 - 1) for n in range(100_000)]
    text = dump(alike)
    began = time.thread_time()
    assert not same(load(f'{{"s":{text}}}', inert=True), set(range(100_000)))
    assert time.thread_time() - began < 2.0
