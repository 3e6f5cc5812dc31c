"""Reading solutions: the statistics of each against a plain forward pass, token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from dare.curriculum.estimators.dare.features import STATISTICS
from dare.errors import InvalidInput
from dare.training.prompts import PromptStore, what_solutions_are


def test_statistics_of_read_solutions_against_a_plain_forward_pass(tmp_path: Path) -> None:
    texts = ["3+4=7", "no number", "9", None, "so 12*3=36. 36-1=35"]
    rows = [
        {"prompt": f"{place}?", "solution": text, "answer": "?", "chance": 0.5}
        for place, text in enumerate(texts)
    ]
    model = tiny.policy()
    trainer = tiny.trainer(tmp_path, model=model, data=rows, temperature=0.8, top_p=0.5)
    found = trainer.collector.read_solutions(np.arange(len(texts)), 12)
    tokenizer, tokens = trainer.processing_class, 0
    for row, got in enumerate(found.values):
        text = trainer.store.records[row]["solution"]
        if text is None:
            assert np.isnan(got).all()
            continue
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tiny.END][:12]
        prompt = trainer.store.tokens(row).tolist()
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits.double() / 0.8, -1)
        each = [float(logprobs[place, token]) for place, token in enumerate(ids)]
        numbers = [v for v, c in zip(each[1:], text[1:12], strict=False) if c in "0123456789"]
        low = min(numbers, default=0.0)
        wanted = [len(ids), sum(each), min(each), each[0], sum(numbers), low]
        assert len(wanted) == STATISTICS
        assert np.allclose(got, wanted, atol=1e-3)
        tokens += len(ids)
    assert found.tokens == tokens


def test_digits_are_told_by_the_text_of_a_token_and_not_of_a_special_one() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["abc12", "abcd"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<slot1>"]})
    store = PromptStore([{"prompt": "1+1=", "answer": "2"}], tokenizer)
    ids = np.array(tokenizer.convert_tokens_to_ids(["7", "+", "abc12", "abcd", "<slot1>", "7"]))
    assert store.holds_digit(ids).tolist() == [True, False, True, False, False, True]
    assert store.holds_digit(ids[::-1]).tolist() == [True, False, False, True, False, True]


# --- gold answers and worked solutions ------------------------------------------------------------

WORKED = "We add the two numbers.\\nThe first is 3 and the second is 4, so the sum is \\\\boxed{7}."


@pytest.mark.parametrize(
    ("solution", "answer", "taken"),
    [
        ("7", None, "gold"),
        (r"$\frac{1}{2}$", None, "gold"),
        (r"\boxed{7}", None, "gold"),
        (WORKED, None, "worked"),
        ("def f(x):\n    return x", None, "worked"),
        ("3+4=7", "7", "worked"),
        ("$7$", "7", "gold"),
        (WORKED, "7", "worked"),
        (None, "7", ""),
    ],
)
def test_gold_answers_are_told_from_worked_solutions(solution, answer, taken):
    row = {"prompt": "3+4=", "solution": solution}
    assert what_solutions_are([{**row, "answer": answer}] if answer else [row]) == taken


def test_gold_solutions_become_answers_and_the_log_says_so(tmp_path, caplog):
    rows = [{k: v for k, v in row.items() if k != "answer"} for row in tiny.problems(0.5)]
    gold = [{**row, "solution": f"${row['solution'].partition('=')[2]}$"} for row in rows]
    store = tiny.trainer(tmp_path, data=gold).store
    assert "taken for gold answers" in caplog.text
    assert not store.has_solutions
    assert store.table.answers[0] == store.records[0]["solution"].strip("$")
    caplog.clear()
    worked = [{**row, "solution": row["solution"] + "\nas was asked for"} for row in rows]
    assert tiny.trainer(tmp_path, data=worked).store.has_solutions
    assert "taken for worked solutions" in caplog.text
    caplog.clear()
    tiny.trainer(tmp_path)  # with answers there is no doubt
    assert "taken for" not in caplog.text


def test_images_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="text only"):
        tiny.trainer(tmp_path, data=[{**row, "image": None} for row in tiny.problems(0.5)])


def test_short_worked_solutions_of_the_built_in_tasks_are_not_taken_for_answers() -> None:
    from dare import tasks
    from dare.training.prompts import what_solutions_are

    assert what_solutions_are(tasks.generate(64, seed=0)) == "worked"
    rows = [{"prompt": "p", "solution": gold, "answer": "7"} for gold in ("7", "$7$", "\\boxed{7}")]
    assert what_solutions_are(rows) == "gold"
    assert what_solutions_are([{"solution": "3+4=7, \\boxed{7}", "answer": "7"}]) == "worked"
