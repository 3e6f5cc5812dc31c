"""Evaluations side by side: paired differences, budgets, and who solves what."""

from __future__ import annotations

import pytest

from dare.errors import InvalidInput
from dare.evaluation.records import Record, Wanted, check, pick
from dare.evaluation.side_by_side import compare, tables_of


def record(name: str, scores: list[float | None], **more: object) -> Record:
    size = len(scores)
    return {
        **{"benchmark": "b", "id": name, "level": "5", "subject": "x", "prompt": "q", "gold": "1"},
        **{"responses": ["r"] * size, "tokens": [3] * size, "finish": ["stop"] * size},
        "scores": scores,
        **more,
    }


A = [record("1", [1.0, 0.0]), record("2", [0.0, 1.0]), record("3", [0.0, 0.0]), record("4", [1, 1])]
B = [record("4", [1.0, 1.0]), record("3", [1.0, 0.0]), record("2", [0.0, 0.0]), record("9", [1, 1])]


def test_overlap_on_common_problems() -> None:
    found = compare({"a": A, "b": B})["b"]
    assert (found["problems"], found["left_out"]) == (3, 1)
    regions = {tuple(one["solved_by"]): one["problems"] for one in found["regions"]}
    assert regions == {("a", "b"): 1, ("a",): 1, ("b",): 1}
    assert found["only"] == {"a": ["2"], "b": ["3"]}
    assert found["solved"] == {"a": 2, "b": 2}
    assert sum(regions.values()) == found["problems"]


def test_solved_by_the_first_responses_alone() -> None:
    regions = compare({"a": A, "b": B}, k=1)["b"]["regions"]
    assert {tuple(one["solved_by"]): one["problems"] for one in regions} == {
        ("a", "b"): 1,
        ("b",): 1,
        (): 1,
    }


@pytest.mark.parametrize("k", [0, 3])
def test_more_responses_than_any_problem_has(k: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        compare({"a": A, "b": B}, k=k)
    assert (caught.value.field, caught.value.value) == ("--k", k)


def test_differences_are_paired() -> None:
    spread = [record(str(n), [float(n % 2)]) for n in range(100)]
    better = [record(str(n), [1.0 if n < 10 else float(n % 2)]) for n in range(100)]
    found = compare({"a": spread, "b": better})["b"]
    assert found["sign_test"]["b"] == {"better": 5, "worse": 0, "p": 2 / 32}
    mean, low, high = found["difference"]["b"]
    assert mean == pytest.approx(0.05)
    # Unpaired, the interval of a difference of two rates near one half would have width 0.28.
    assert 0 < low < mean < high < 0.11


def test_three_models_and_their_tables() -> None:
    found = compare({"a": A, "b": B, "c": A})
    titles = [table.title for table in tables_of(found)]
    assert titles == [
        "b: 3 problems",
        "b: pass@k in %, against the rollout budget",
        "b: problems solved by exactly",
    ]
    text = "\n".join(table.markdown() for table in tables_of(found))
    assert "| a + c | 1 |" in text
    assert "| a | 50.0 | 66.7 |" in text


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no benchmark in common"):
        compare({"a": A, "b": [record("1", [1.0], benchmark="other")]})
    with pytest.raises(InvalidInput, match="no problem in common"):
        compare({"a": A, "b": [record("7", [1.0])]})


RECORDS = [
    record("1", [1.0, 0.0], finish=["stop", "length"]),
    record("2", [None], level="1", labels=[True]),
    record("3", [0.0], labels=[True], prompt="needle"),
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(), [("1", [0, 1]), ("2", [0]), ("3", [0])]),
        (Wanted(kinds=("wrong",)), [("1", [1]), ("3", [0])]),
        (Wanted(kinds=("wrong", "truncated")), [("1", [1])]),
        (Wanted(kinds=("unscored",)), [("2", [0])]),
        (Wanted(kinds=("disagree",)), [("3", [0])]),
        (Wanted(kinds=("right",), level=("5",)), [("1", [0])]),
        (Wanted(level=("1", "5"), contains="needle"), [("3", [0])]),
        (Wanted(id="2"), [("2", [0])]),
    ],
)
def test_records_are_picked(wanted: Wanted, found: list[tuple[str, list[int]]]) -> None:
    assert [(one["id"], places) for one, places in pick(RECORDS, wanted)] == found


def test_names_that_no_record_has_are_refused() -> None:
    with pytest.raises(InvalidInput, match="--level = '7'"):
        check(RECORDS, Wanted(level=("7",)))
    with pytest.raises(InvalidInput, match="--benchmark = 'c'"):
        check(RECORDS, Wanted(benchmark="c"))
