"""The prompt table: ids, merging, look-up."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import examples, records

from dare import InvalidInput
from dare.curriculum import PromptTable, prompt_id


def by_hand(source: str, text: str) -> str:
    return hashlib.blake2b(f"{source}\x1f{text}".encode(), digest_size=8).hexdigest()


def test_an_id_is_pinned_forever() -> None:
    # Changing this breaks every checkpoint and difficulty table ever written.
    assert prompt_id("gsm8k", "What is 2 + 2?") == "2b25030726ac2cab"


def test_ids_do_not_depend_on_the_process() -> None:
    code = "from dare.curriculum import prompt_id; print(prompt_id('s', 'naïve ∑ prompt'))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "12345")
    }
    assert found == {by_hand("s", "naïve ∑ prompt")}


@given(st.text(min_size=1), st.text(min_size=1))
@examples(60)
def test_source_and_text_cannot_be_confused(left: str, right: str) -> None:
    # Moving the boundary between source and text gives another prompt.
    assert prompt_id(left, right + "x") != prompt_id(left + right, "x")


@given(st.permutations(range(12)))
@examples(30)
def test_row_order_changes_nothing_but_the_way_back(order: list[int]) -> None:
    rows = [
        {"prompt": f"p{i}", "source": f"s{i % 3}", "level": i % 4, "answer": str(i)}
        for i in range(12)
    ]
    straight = PromptTable.from_records(rows)
    shuffled = PromptTable.from_records([rows[i] for i in order])
    assert shuffled.ids() == straight.ids() == sorted(straight.ids())
    for name in ("texts", "answers", "sources", "levels"):
        assert getattr(shuffled, name) == getattr(straight, name)
    assert np.array_equal(shuffled.source_P, straight.source_P)
    assert np.array_equal(shuffled.level_P, straight.level_P)
    for prompt in range(12):
        row = rows[order[shuffled.dataset_row_P[prompt]]]
        assert row["prompt"] == shuffled.texts[prompt]
        assert row["source"] == shuffled.sources[shuffled.source_P[prompt]]
        assert str(row["level"]) == shuffled.levels[shuffled.level_P[prompt]]
        assert by_hand(row["source"], row["prompt"]) == shuffled.ids([prompt])[0]


def test_rows_with_tests_are_known_whatever_the_column_and_the_order() -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "tests": ["assert f(1) == 2"]},
        {"prompt": "b", "test_list": '["assert g(1) == 2"]'},
        {"prompt": "c", "input_output": {"inputs": ["1"], "outputs": ["2"]}},
        {"prompt": "d", "tests": []},
        {"prompt": "e", "test": True},  # a flag of some data set
        {"prompt": "f", "answer": "7"},
        {"prompt": "a"},  # a repeat without
    ]
    for order in (rows, rows[::-1]):
        found = PromptTable.from_records(order)
        assert found.tests_P is not None
        assert found.texts is not None
        tested = dict(zip(found.texts, found.tests_P.tolist(), strict=True))
        assert [name for name in "abcdef" if tested[name]] == ["a", "b", "c"]
    assert PromptTable.from_keys([1, 2]).tests_P is None


def test_same_text_under_two_sources_is_two_prompts() -> None:
    both = PromptTable.from_columns(["q", "q"], sources=["a", "b"])
    assert len(both) == 2
    assert both.report.duplicates == 0
    assert len(set(both.ids())) == 2


def test_duplicates_are_merged_and_reported() -> None:
    rows = [{"prompt": t, "answer": t.upper()} for t in ["a", "b", "a", "a", "c", "b"]]
    merged = PromptTable.from_records(rows)
    assert sorted(merged.texts or ()) == ["a", "b", "c"]
    assert (merged.report.rows, merged.report.prompts, merged.report.duplicates) == (6, 3, 3)
    assert merged.report.conflicting_answers == ()


@given(st.permutations(["7", "8", None, "8", "6"]))
@examples(30)
def test_conflicting_answers_are_reported_and_order_does_not_choose(order: list[str]) -> None:
    rows = [{"prompt": "q", "answer": gold, "level": gold} for gold in order]
    rows.insert(2, {"prompt": "agreed", "answer": "1"})
    rows.append({"prompt": "agreed", "answer": "1"})
    merged = PromptTable.from_records(rows)
    assert merged.report.conflicting_answers == (prompt_id("data", "q"),)
    place = int(merged.rows([prompt_id("data", "q")])[0])
    assert merged.answers is not None
    assert merged.answers[place] == "6"
    assert rows[merged.dataset_row_P[place]]["answer"] == "6"


def test_rows_and_ids_are_inverse_and_unknown_ids_are_named() -> None:
    prompts = PromptTable.from_records(records(30))
    rows = np.array([4, 0, 29, 4])
    assert np.array_equal(prompts.rows(prompts.ids(rows)), rows)
    assert len(prompts.rows([])) == 0
    for unknown in ("0" * 16, "f" * 16, prompt_id("data", "no such question")):
        with pytest.raises(InvalidInput, match=unknown) as error:
            prompts.rows([prompts.ids([3])[0], unknown])
        assert error.value.field == "prompt id"
    for garbage in ("question 3", "-1", "f" * 17, None, ""):
        with pytest.raises(InvalidInput):
            prompts.rows([garbage])  # type: ignore[list-item]


@pytest.mark.parametrize("value", [None, "", "  \n", 3, ["chat"]])
def test_a_row_without_a_prompt_is_named(value: object) -> None:
    rows = [*records(2), {"prompt": value}]
    with pytest.raises(InvalidInput, match="row 2"):
        PromptTable.from_records(rows)


def test_an_empty_prompt_set_is_refused() -> None:
    for build in (
        lambda: PromptTable.from_records([]),
        lambda: PromptTable.from_columns([]),
        lambda: PromptTable.from_keys([]),
    ):
        with pytest.raises(InvalidInput, match="at least one prompt"):
            build()


def test_columns_of_unequal_length_are_refused() -> None:
    for name in ("sources", "levels", "answers"):
        with pytest.raises(InvalidInput, match="must have 2 entries") as error:
            PromptTable.from_columns(["a", "b"], **{name: ["x"]})
        assert error.value.field == name


def test_keys_alone_make_a_table() -> None:
    keys = np.array([9, 2**63 + 5, 3], dtype=np.uint64)
    prompts = PromptTable.from_keys(keys, levels=[0, 1, 2])
    assert prompts.ids() == [f"{k:016x}" for k in sorted(keys.tolist())]
    assert prompts.level_P.tolist() == [2, 0, 1]
    assert np.array_equal(keys[prompts.dataset_row_P], prompts.key_P)
    with pytest.raises(InvalidInput, match="must not repeat"):
        PromptTable.from_keys([1, 1])
