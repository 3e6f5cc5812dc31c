"""Responses that state their answer in another way than the rewards read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dare.errors import InvalidInput
from dare.evaluation.benchmarks import Problem, benchmark
from dare.evaluation.responses import check_form, detect, restate
from dare_verify.code import extract_program
from dare_verify.math import final_answer

MATH, CODE = benchmark("math500"), benchmark("humaneval")
PROBLEM = Problem("p", "q", "q", "1", {"answer": "1"})
STARTED = replace(PROBLEM, starter='def add(a, b):\n    """Sum."""\n')


@pytest.mark.parametrize(
    ("form", "response", "answer"),
    [
        ("tag", r"so \boxed{7}. <answer>8</answer>", "8"),
        ("tag", "<answer>1</answer> no, <answer> \\frac{1}{2} </answer>", r"\frac{1}{2}"),
        ("tag", r"<answer>\boxed{3}</answer>", "3"),
        ("tag", "<answer>cut o", "cut o"),
        ("tag", r"\boxed{7}", None),
        ("line", "He has 3.\nA: 18", "18"),
        ("line", "A: 1\nA: 2\n", "2"),
        ("line", "The answer is 4.", "4"),
        ("line", "A man has 5 cows.", None),
        ("native", r"\boxed{7}", "7"),
        ("native", "A: 7", None),
    ],
)
def test_the_stated_answer_is_what_the_reward_reads(
    form: str, response: str, answer: str | None
) -> None:
    assert final_answer(restate(form, PROBLEM, response)) == answer


def test_programs_and_continuations_become_programs() -> None:
    program = "def add(a, b):\n    return a + b"
    assert extract_program(restate("program", PROBLEM, program)) == program + "\n"
    fenced = f"Here:\n```python\n{program}\n```"
    assert restate("program", PROBLEM, fenced) == fenced
    more = "    return a + b\n\nprint(add(1, 2))"
    whole = extract_program(restate("continuation", STARTED, more))
    assert whole == 'def add(a, b):\n    """Sum."""\n    return a + b\n\n\n'
    quoting = replace(STARTED, starter='def f():\n    """\n    ```\n    f()\n    ```\n    """\n')
    whole = extract_program(restate("continuation", quoting, "    return 1\n"))
    assert whole == f"{quoting.starter}    return 1\n\n"


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        ([r"\boxed{1}", "#### 2", "nothing"], "native"),
        ([r"\boxed{1} <answer>1</answer>", "<answer>2</answer>", "cut off"], "tag"),
        (["x\nA: 1", "y\nA: 2", "cut off"], "line"),
        (["nothing", "at all"], "native"),
    ],
)
def test_the_form_of_most_is_found(texts: list[str], form: str) -> None:
    assert detect(MATH, [PROBLEM], [texts]) == form


def test_the_form_of_programs_is_found() -> None:
    assert detect(CODE, [STARTED], [["```python\nx\n```"]]) == "native"
    assert detect(CODE, [STARTED], [["    return a", "\n    return b"]]) == "continuation"
    assert detect(CODE, [STARTED], [["def f():\n    pass"]]) == "program"
    assert detect(CODE, [PROBLEM], [["    return a"]]) == "program"


def test_a_form_that_cannot_be_is_refused() -> None:
    for item, form in ((MATH, "program"), (CODE, "tag"), (MATH, "boxed")):
        with pytest.raises(InvalidInput, match="--form"):
            check_form(item, form)
