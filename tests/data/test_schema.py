"""Raw rows of many data sets in one schema."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from dare.curriculum.prompts import prompt_id
from dare.data import read_rows, to_row
from dare.data.schema import FIELDS, with_call
from dare.errors import InvalidInput
from dare.training.prompts import PromptStore

FUNCTION = json.dumps({"fn_name": "f", "inputs": [[4, 2]], "outputs": [[2]]})


def one(**raw: Any) -> dict[str, Any]:
    return to_row(next(iter(read_rows([raw]))), "set")


@pytest.mark.parametrize(
    ("raw", "prompt", "answer", "level"),
    [
        ({"problem": "1+1?", "answer": 2, "level": "Level 5"}, "1+1?", "2", "5"),
        ({"question": "q", "final_answer": "x", "difficulty": 6.5}, "q", "x", "6.5"),
        ({"question": "q", "answer": "3 + 4 = 7\n#### 7"}, "q", "7", None),
        ({"problem": "q", "solution": r"so \boxed{\frac{1}{2}}"}, "q", r"\frac{1}{2}", None),
        ({"prompt": "q", "reward_model": {"ground_truth": "9"}}, "q", "9", None),
        ({"query": "q", "gold": ["1", "2"], "level": 3.0}, "q", "1, 2", "3"),
        ({"instruction": "q", "target": 0, "level": "hard"}, "q", "0", "hard"),
    ],
)
def test_usual_names_are_guessed(raw, prompt, answer, level):
    row = one(**raw)
    assert (row["prompt"], row["answer"], row["level"]) == (prompt, answer, level)
    assert tuple(row) == FIELDS


def test_worked_answers_become_the_solution():
    assert one(question="q", answer="3 + 4 = 7\n#### 7")["solution"] == "3 + 4 = 7\n#### 7"


def test_named_columns_win_and_the_rest_is_extra():
    raw = {"text": "t", "prompt": "p", "gold": "1", "answer": "2", "topic": "sets", "id": "x/1"}
    row = to_row(raw, "set", {"prompt": "text", "answer": "gold"})
    assert (row["prompt"], row["answer"]) == ("t", "1")
    assert row["extra"] == {"topic": "sets", "id": "x/1"}


def test_ids_are_those_of_the_curriculum():
    rows = [
        one(prompt="1+1?", answer="2"),
        one(prompt=[{"role": "user", "content": "é?"}], answer="2"),
    ]
    store = PromptStore([{**row, "source": "set"} for row in rows], tokenizer=None)
    assert sorted(row["id"] for row in rows) == sorted(store.table.ids())
    assert rows[0]["id"] == prompt_id("set", "1+1?")


def test_a_row_in_the_schema_stays_as_it_is():
    row = one(prompt="q", answer="1", level=2, topic="sets", tests=[{"input": "1", "output": "2"}])
    assert to_row(row, "other") == row
    packed = {**row, "extra": json.dumps(row["extra"]), "tests": json.dumps(row["tests"])}
    assert to_row(packed, "other") == row


@pytest.mark.parametrize(
    ("raw", "tests"),
    [
        (
            {"input_output": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})},
            [{"input": "1\n", "output": "2\n"}],
        ),
        (
            {
                "input_output": json.dumps({"fn_name": "f", "inputs": [[1, 2]], "outputs": [[3]]}),
                "starter_code": "class Solution:\n    def f(self, a, b):",
            },
            [{"fn": "Solution().f", "args": [1, 2], "output": 3}],
        ),
        (
            {"tests": [{"input": "[1]\n2", "output": [5]}], "starter_code": "def g(a, b):\n\t"},
            [{"fn": "g", "args": [[1], 2], "output": 5}],
        ),
        (
            {"test_list": ["assert f(1) == 2", "assert f(2) == 3"]},
            [{"code": "assert f(1) == 2\nassert f(2) == 3"}],
        ),
        (
            {"test": "def check(candidate):\n    assert candidate(1)", "entry_point": "f"},
            [{"code": "def check(candidate):\n    assert candidate(1)", "entry_point": "f"}],
        ),
        ({"tests": "['assert f(1) == 2']"}, [{"code": "assert f(1) == 2"}]),
        ({"tests": [{"input": "1", "output": "2", "fn": None}]}, [{"input": "1", "output": "2"}]),
    ],
)
def test_tests_take_the_forms_of_the_judge(raw, tests):
    from dare_verify.code.judge import check_tests

    row = one(question="q", **raw)
    assert row["tests"] == tests
    kind = "function" if "fn" in tests[0] else "assert" if "code" in tests[0] else "stdin"
    check_tests(row["tests"], kind)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"text": "q", "answer": "1"}, "row 1: prompt = None.*columns.*it has text, answer"),
        ({"prompt": "  ", "answer": "1"}, "row 1: prompt"),
        ({"prompt": 5, "answer": "1"}, "row 1: prompt = 5"),
        ({"prompt": [], "answer": "1"}, "row 1: prompt"),
        ({"prompt": ["q"], "answer": "1"}, r"row 1: prompt\[0\]"),
        ({"prompt": [{"role": "user", "content": 3}], "answer": "1"}, r"prompt\[0\]"),
        ({"prompt": [{"role": "user", "content": " "}], "answer": "1"}, "no words"),
        ({"question": "q"}, "row 1: answer or tests"),
        ({"question": "q", "answer": "", "tests": []}, "row 1: answer or tests"),
        ({"question": "q", "answer": float("nan")}, "row 1: answer = nan"),
        ({"question": "q", "final_answer": True}, "row 1: final_answer = True.*bool"),
        ({"question": "q", "answer": {"a": 1}}, "row 1: answer.*dict"),
        ({"question": "q", "answer": "1", "level": [3]}, "row 1: level"),
        ({"question": "q", "answer": "1", "difficulty": float("inf")}, "row 1: difficulty"),
        ({"question": "\ud800", "answer": "1"}, "row 1: question.*surrogate"),
        ({"question": "q", "answer": ["1", ["2"]]}, "row 1: answer.*list"),
        ({"question": "q", "answer": "1", "extra": "[" * 99_999}, "row 1: extra"),
        ({"question": "q", "tests": '[{"input": "1'}, "row 1: tests.*cut off"),
        ({"\x1b[2J\n": "q", "answer": "1"}, r"it has '\\x1b\[2J\\n', answer"),
        ({"question": "q", "answer": "1", "extra": 7}, "row 1: extra"),
        ({"question": "q", "tests": [{"input": "1"}]}, r"row 1: tests\[0\]"),
        ({"question": "q", "tests": [{"code": 7}]}, r"row 1: tests\[0\]\.code = 7: must be a text"),
        ({"question": "q", "tests": [{"code": "assert f()", "entry_point": []}]}, r"\.entry_point"),
        ({"question": "q", "tests": '[{"output": "1"}, {"code": ["a"]}]'}, r"tests\[1\]\.code"),
        ({"question": "q", "tests": [{"code": "assert f()", "setup": {}}]}, r"tests\[0\]\.setup"),
        ({"question": "q", "tests": 7}, "row 1: tests = 7"),
        ({"question": "q", "input_output": '{"inputs": [1], "outputs": []}'}, "1 inputs and 0"),
        (
            {"question": "q", "input_output": '{"inputs": [[%s]], "outputs": [1]}' % ("7" * 9000)},
            "row 1: input_output.*4,300 digits",
        ),
    ],
)
def test_what_cannot_be_a_row_is_named(raw, message):
    with pytest.raises(InvalidInput, match=f"(?s){message}"):
        one(**raw)


def test_an_answer_of_9000_digits_as_a_string_or_from_python_is_kept_whole():
    digits = "7" * 9000
    value = int("7" * 4000) * 10**5000 + int("7" * 4000) * 10**1000 + int("7" * 1000)
    assert one(prompt="q", answer=digits)["answer"] == digits
    assert one(prompt="q", answer=value)["answer"] == digits


def test_integers_beyond_floats_and_decimals_are_numbers():
    digits = "7" * 400
    row = one(prompt="q", answer=int(digits), level=int(digits))
    assert (row["answer"], row["level"]) == (digits, digits)
    assert one(prompt="q", answer=Decimal("1.50"))["answer"] == "1.50"


def test_a_conversation_for_fine_tuning_does_not_show_its_reply():
    turns = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": r"\boxed{2}"}]
    row = one(messages=turns)
    assert (row["prompt"], row["answer"], row["solution"]) == (turns[:1], "2", r"\boxed{2}")
    assert one(prompt=turns, answer="2")["prompt"] == turns  # asked for as a prompt


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ({"input_output": FUNCTION, "starter_code": "def f(a, b):\n\t"}, "```python\ndef f(a, b):"),
        ({"input_output": FUNCTION}, "called as `f(...)`"),
        ({"test_list": ["assert set(f(1)) == 2"]}, "```python\nassert set(f(1)) == 2\n```"),
        ({"test": "def check(g):\n    assert g(1)", "entry_point": "f"}, "called as `f(...)`"),
    ],
)
def test_a_prompt_names_what_its_tests_call(raw, shown):
    raw = {"question": "Half of it.", **raw}
    for prompt in ("Half of it.", [{"role": "user", "content": "Half of it."}]):
        row = to_row({**raw, "question": prompt}, "set")
        told = with_call(row, raw)
        text = told["prompt"] if isinstance(prompt, str) else told["prompt"][0]["content"]
        assert text.startswith("Half of it.\n\n")
        assert shown in text
        assert told["id"] != row["id"]
        assert with_call(told, raw) is told  # a prepared file is prepared again
    named = to_row({**raw, "question": "Write f."}, "set")
    assert with_call(named, raw) is named
    assert with_call(to_row({"prompt": "q", "answer": "1"}, "set"), {})["prompt"] == "q"


def test_named_columns_must_exist():
    with pytest.raises(InvalidInput, match=r"gold.*no such column; it has prompt, answer"):
        to_row({"prompt": "q", "answer": "1"}, "set", {"answer": "gold"})
    assert to_row({"prompt": "q", "answer": "1"}, "set", {"level": "grade"})["level"] is None


def test_the_column_of_ids_can_be_named():
    row = to_row({"prompt": "q", "answer": "1", "uid": 7}, "set", {"id": "uid"})
    assert row["extra"] == {"id": 7}
    assert row["id"] == prompt_id("set", "q")
