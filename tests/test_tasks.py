"""Properties of the embedded problems and of their check."""

import re
import time
from collections import Counter

import pytest

from dare import tasks
from dare.errors import InvalidInput


def evaluated(prompt: str) -> int:
    """The value of a prompt by Python's own arithmetic, which shares no code with the generator."""
    body, modulus = prompt.split(" mod ")
    assert re.fullmatch(r"[0-9+*^()]+", body)
    return int(eval(body.replace("^", "**"))) % int(modulus)


def test_every_answer_is_what_python_computes():
    for split in ("train", "test"):
        for problem in tasks.generate(3000, 1, split=split):
            assert int(problem["answer"]) == evaluated(problem["prompt"])


def test_the_worked_solution_is_right_at_every_step():
    for problem in tasks.generate(1000, 2):
        chain, box = problem["solution"].split("\n")
        modulus = problem["prompt"].split(" mod ")[1]
        first, *rest = chain.split("=")
        assert len(rest) == tasks.LEVELS[problem["level"]].steps
        for part in rest:
            value = re.match(r"\d+", part)[0]
            assert evaluated(f"{first} mod {modulus}") == int(value)
            first = part
        assert box == rf"\boxed{{{problem['answer']}}}"
        assert tasks.reward(problem["solution"], problem["answer"]) == 1.0


def test_the_seed_alone_decides():
    assert tasks.generate(300, 7) == tasks.generate(300, 7)
    assert tasks.generate(300, 7) != tasks.generate(300, 8)


def test_splits_never_share_a_problem():
    train = {p["prompt"] for seed in range(3) for p in tasks.generate(6000, seed)}
    test = {p["prompt"] for seed in range(3) for p in tasks.generate(6000, seed, split="test")}
    assert not train & test
    # Short problems are few: together the splits hold every one of them, so neither is empty.
    singles = {p for p in train | test if "(" not in p and p.count("*") + p.count("^") == 1}
    assert len(singles) == sum((f.modulus - 1) * 6 for f in tasks.FAMILIES.values())


def test_levels_and_families_are_balanced_and_distinct():
    problems = tasks.generate(2400, 0)
    counts = Counter((p["level"], p["source"]) for p in problems)
    assert set(counts.values()) == {100}
    assert len(counts) == 8 * 3
    assert len({p["prompt"] for p in problems}) == len(problems)


def test_repeats_come_only_when_a_level_is_used_up():
    prompts = [p["prompt"] for p in tasks.generate(2000, 0, levels=[1], families=["square"])]
    counts = Counter(prompts)
    assert len(counts) < 82 * 3
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_choice_of_levels_and_families_is_kept():
    problems = tasks.generate(50, 0, levels=(3, 5), families=["horner"])
    assert {p["level"] for p in problems} == {3, 5}
    assert {p["source"] for p in problems} == {"horner"}
    assert tasks.generate(0, 0) == []


@pytest.mark.parametrize(
    "wrong",
    [{"levels": [9]}, {"levels": []}, {"families": ["sums"]}, {"split": "dev"}, {"count": -1}],
)
def test_bad_requests_name_the_field(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        tasks.generate(**{"count": 1, "seed": 0, **wrong})


def test_a_hundred_thousand_problems_take_seconds():
    began = time.process_time()
    assert len(tasks.generate(100_000, 0)) == 100_000
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (r"\boxed{72}", 1.0),
        (r"\boxed{ 72 }", 1.0),
        (r"\boxed{072}", 1.0),
        (r"\boxed{+72}", 1.0),
        (r"first \boxed{3}, no: \boxed{72}", 1.0),
        (r"\boxed{72} or \boxed{3}", 0.0),  # the last one counts
        (r"\boxed{72} and \boxed{3", 0.0),  # also one that was cut off
        (r"\boxed{\boxed{72}}", 1.0),
        ("72", 0.0),
        ("", 0.0),
        (r"\boxed{}", 0.0),
        (r"\boxed{72", 0.0),
        (r"\boxed{-72}", 0.0),
        (r"\boxed{- 72}", 0.0),
        (r"\boxed{7 2}", 0.0),
        (r"\boxed{72.0}", 0.0),
        (r"\boxed{72, 3}", 0.0),
        (r"\boxed{x=72}", 0.0),
        (r"\boxed{{72}}", 0.0),
        (r"} \boxed{72} }", 1.0),
        (r"{ \boxed{72}", 1.0),
        (r"\boxed{72{}", 0.0),
        ("\\boxed{\uff17\uff12}", 0.0),
        (r"\boxed{7_2}", 0.0),
        (r"boxed{72}", 0.0),
        (r"\boxed{" + "9" * 5000 + "}", 0.0),
    ],
)
def test_reward(completion, expected):
    assert tasks.reward(completion, "72") == expected
    assert tasks.reward(completion, 72) == expected


def test_reward_of_a_negative_answer():
    assert tasks.reward(r"\boxed{-5}", "-5") == 1.0
    assert tasks.reward(r"\boxed{5}", "-5") == 0.0


def test_the_check_is_fast_on_hostile_text():
    began = time.process_time()
    tasks.reward("\\boxed{" * 30_000, "1")
    assert time.process_time() - began < 5
