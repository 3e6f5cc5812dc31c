"""Hints from programs: what they say, and that they do not give the program away."""

import json
import os
import runpy
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dare.errors import InvalidInput
from dare_hints.programs import SHARE, ProgramGuard, outline, parsed

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("DARE_DATA", ROOT / ".." / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (DATA / "mbpp").is_dir(), reason="set DARE_DATA to a folder that holds mbpp/ and rollouts/"
)
shown = runpy.run_path(str(Path(__file__).with_name("program_rule.py")))["shown"]
bench = runpy.run_path(str(ROOT / "benchmarks" / "hints.py"))

PROGRAM = '''\
def two_sum(nums, target):
    """Find the pair."""
    seen = {}
    # Remember every number with its place
    for i, x in enumerate(nums):
        y = target - x
        if y in seen:
            return [seen[y], i]
        seen[x] = i
    return []
'''
RESPONSE = f"""Sure! Here is the solution to your problem:

We iterate over the numbers once and keep a dictionary from value to index. For each number we \
check if `target - x` was seen before. In the end `return [seen[y], i]` gives the pair.

```python
{PROGRAM}```

Example usage: two_sum([2, 7], 9) outputs [0, 1]."""


def guard(program: str, prompt: str = "") -> ProgramGuard:
    tree = parsed(program)
    assert tree is not None
    return ProgramGuard(tree, prompt)


# --- the guard ---


def test_statements_are_those_that_a_reader_would_count() -> None:
    found = [item.text for item in guard(PROGRAM).statements]
    assert found == [
        "seen = {}",
        "for i, x in enumerate(nums):",
        "y = target - x",
        "if y in seen:",
        "return [seen[y], i]",
        "seen[x] = i",
        "return []",
    ]
    assert guard(PROGRAM).budget == 2  # a third of seven, rounded down


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("seen={}", 1),
        ("we write `y  =  (target - x)` there", 1),
        ("look up target-x, which", 1),  # what the statement works out
        ("for i, x in enumerate( nums ):\n    y = target - x", 2),
        ("return [ seen[y], i ]", 1),
        ("we look for the other number of the pair", 0),
        ("enumerate the numbers and see", 0),
        (PROGRAM, 7),
    ],
)
def test_a_statement_is_found_however_it_is_set(text: str, count: int) -> None:
    assert len(guard(PROGRAM).shown(text)) == count


def test_brackets_and_quotes_do_not_hide_a_statement() -> None:
    program = "def f(a, b):\n    i, j = 0, len(a)\n    if (a == 'x'):\n        return (i + j) * 2\n"
    for text in ('if a == "x":', "(i, j) = (0, len(a))", "return ((i+j)*2)"):
        assert len(guard(program).shown(text)) == 1


def test_what_the_prompt_shows_is_not_given_away() -> None:
    assert len(guard(PROGRAM, "Begin with:\n    seen = {}\n").statements) == 6


def test_calls_after_a_function_do_not_raise_what_may_be_shown() -> None:
    checks = "".join(f"print(two_sum([{i}, 7], 9))\n" for i in range(30))
    assert guard(PROGRAM + checks).budget == guard(PROGRAM).budget
    assert len(guard(PROGRAM + checks).statements) == 37


# --- what a hint says ---


def test_the_plan_in_words_comes_first_and_code_stays_out() -> None:
    hint = outline(RESPONSE, "Find two numbers that add up to target: two_sum(nums, target).")
    assert hint == [
        "We iterate over the numbers once and keep a dictionary from value to index.",
        "For each number we check if `target - x` was seen before.",
        "Remember every number with its place",
    ]


def test_a_bare_program_is_outlined_by_calls_flow_and_opening() -> None:
    assert outline(PROGRAM.replace("    # Remember every number with its place\n", "")) == [
        "It calls enumerate",
        "Its control flow is: for (if (return)), return",
        "It begins with `seen = {}`, then `for i, x in enumerate(nums):`",
    ]


def test_helpers_modules_methods_and_recursion_are_named() -> None:
    program = (
        "import math\n\ndef gcd_of(a, b):\n    return a if b == 0 else gcd_of(b, a % b)\n\n"
        "def main_task(words):\n    words.sort()\n    return math.floor(gcd_of(len(words), 3))\n"
    )
    first = outline(program, "Write main_task(words).")[0]
    assert first == (
        "It has the functions gcd_of(a, b); It calls .sort, math.floor; It calls itself"
    )


def test_comments_speak_unless_they_are_code_or_talk() -> None:
    program = (
        "def f(a):\n"
        "    # Sort the list so that equal values are neighbours.\n"
        "    a = sorted(a)\n"
        "    # print(a[0] == a[1])\n"
        "    b = a[1:]\n"
        "    # Example usage of the test cases\n"
        "    return sum(x == y for x, y in zip(a, b))\n"
    )
    hint = outline(program)
    assert hint[0] == "Sort the list so that equal values are neighbours"
    assert not any("print" in line or "usage" in line for line in hint)


def test_of_several_blocks_the_last_python_one_is_the_program() -> None:
    others = "```\nnot python at all\n```\n```python\nx = 1\n```\n"
    text = f"{others}```python\n{PROGRAM}```\n```text\n9\n```"
    assert outline(text) == outline(f"```python\n{PROGRAM}```")
    assert outline("```text\nx = 1\n```") == []


def test_what_the_prompt_says_is_not_repeated() -> None:
    said = "We iterate over the numbers once and keep a dictionary from value to index."
    messages = json.dumps([["user", f"Solve it. {said}"]])
    for prompt in (f"Solve it. {said}", messages):
        assert said not in outline(RESPONSE, prompt)
        assert said in outline(RESPONSE, "Solve it.")


@pytest.mark.parametrize(
    "text", ["", "I do not know.", "```python\nreturn return\n```", "```python\n```", "x", '"doc"']
)
def test_without_a_program_there_is_no_hint(text: str) -> None:
    assert outline(text) == []


def test_limit_is_checked_and_kept() -> None:
    assert len(outline(RESPONSE, limit=1)) == 1
    with pytest.raises(InvalidInput, match="limit = 0"):
        outline(RESPONSE, limit=0)


# --- hostile and random input ---

HOSTILE = ["```x\n", "```\n", "(", "x = (", "if x:\n ", "-", "a.", "# sort each\n", "x = 1\n",
           "~~~python\n", "'", "\\", "lambda: ", "not ", "\x00", "Sort each one. "]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_is_fast_and_harmless(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    began = time.process_time()
    for shape in (text, f"```python\n{text[:19_000]}\n```", f"{text}\n```python\n{PROGRAM}```"):
        outline(shape)
    assert time.process_time() - began < 4.0


LINES = st.sampled_from(
    ["a = 1", "b = a + len(c)", "c = sorted(b)", "return a", "if a > b:\n        b = a",
     "for x in c:\n        a += x", "# sort each and keep the sum", "d = {}", "print(a)"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["We sort the list", "then `a = 1`", "`c = sorted(b)`", "return a", "if each is larger", ". ",
     "\n", "keep b = a + len(c)", "and loop for x in c", "so that it is found"]
)  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(LINES, min_size=1, max_size=12), st.lists(WORDS, max_size=12))
def test_no_response_shows_more_than_the_share(lines: list[str], words: list[str]) -> None:
    program = "def f(c):\n" + "".join(f"    {line}\n" for line in lines) + "    pass\n"
    hint = outline(" ".join(words) + f"\n```python\n{program}```\n")
    seen, total = shown(program, "", "\n".join(hint))
    assert seen <= SHARE * total + 1e-9


# --- real programs ---


@needs_data
@pytest.mark.parametrize(
    ("name", "every", "usable"),
    [("humaneval_models", 1, 0.8), ("mbpp", 4, 0.85), ("leetcode", 8, 0.95)],
)
def test_real_programs_are_not_given_away_and_most_give_a_hint(
    name: str, every: int, usable: float
) -> None:
    cases = bench["load"](name, DATA)[::every]  # benchmarks/hints.py takes all of them
    hints = [outline(*case) for case in cases]
    report = bench["measure_programs"](cases, hints)
    assert report["over"] <= (1 if name == "mbpp" else 0)  # statements that share a line
    assert report["mean"] < 0.25
    assert report["usable_share"] >= usable
    assert all(len(line) <= 300 and "\n" not in line for hint in hints for line in hint)


@needs_data
def test_the_second_rule_sees_a_program() -> None:
    """A rule that never fires proves nothing: it must find the program in itself."""
    cases = bench["load"]("mbpp", DATA)[::20]
    counts = [shown(program, prompt, f"Write this:\n{program}") for program, prompt in cases]
    seen, total = map(sum, zip(*counts, strict=True))
    assert seen >= 0.98 * total  # a comment in the middle of a line hides it
