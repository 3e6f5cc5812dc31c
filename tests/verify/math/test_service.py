"""Unscored is never wrong: injected failures, bad golds, the log and the counts."""

import logging

import pytest

from dare.errors import InvalidInput
from dare_verify.math import MathVerifier, WorkerPool, check_golds, verify


@pytest.fixture
def verifier(math_pool: WorkerPool) -> MathVerifier:
    return MathVerifier(math_pool)


def rows(count: int) -> tuple[list[str], list[str], list[bool]]:
    """Right and wrong answers by turns, half of them for a worker."""
    texts, golds, right = [], [], []
    for k in range(count):
        shift = k % 2
        if k % 4 < 2:
            texts.append(rf"\boxed{{\sqrt{{{4 * (k + 2)}}}}}")
            golds.append(rf"2\sqrt{{{k + 2 + shift}}}")
        else:
            texts.append(rf"\boxed{{{k}}}")
            golds.append(str(k + shift))
        right.append(not shift)
    return texts, golds, right


def test_failures_hit_exactly_their_rows(verifier: MathVerifier) -> None:
    texts, golds, right = rows(60)
    faults = {3: "hang", 10: "crash", 17: "memory", 24: "spin", 41: "crash"}
    verifier.fault = faults.get
    found = verifier.verify_batch(texts, golds)
    assert found == [None if row in faults else verdict for row, verdict in enumerate(right)]
    verifier.fault = None
    assert verifier.verify_batch(texts, golds) == right


def test_time_outs_are_logged_by_row(
    verifier: MathVerifier, caplog: pytest.LogCaptureFixture
) -> None:
    verifier.fault = {5: "hang"}.get
    texts, golds, _ = rows(8)
    with caplog.at_level(logging.WARNING):
        verifier.verify_batch(texts, golds, rows=[f"prompt-{k}" for k in range(8)])
    assert [record.message for record in caplog.records] == ["row prompt-5 is unscored: timeout"]


def test_alarm_above_half_a_percent(
    verifier: MathVerifier, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        verifier.verify_batch([r"\boxed{1}"] * 400, ["1"] * 398 + [None, None])
    assert "more than 0.5 %" not in caplog.text
    with caplog.at_level(logging.WARNING):
        verifier.verify_batch([r"\boxed{1}"] * 2, ["1", None])
    assert "3 of the last 402 rows (0.7 %) are unscored" in caplog.text


@pytest.mark.parametrize("gold", [None, "", "   ", float("inf"), [1], {}, r"\boxed{", r"\boxed{}"])
def test_a_bad_gold_is_unscored(gold: object) -> None:
    assert verify(r"\boxed{1}", gold) is None


def test_a_gold_nobody_understands_is_unscored() -> None:
    assert verify(r"\boxed{7}", r"\{13500, 13501, \ldots\}") is False  # not even the same shape
    assert verify(r"\boxed{7}", r"3\mid n") is None
    assert verify(r"\boxed{3 \mid n}", r"3\mid n") is True


def test_golds_are_checked_at_load_time() -> None:
    golds = ["1", None, "", r"\frac{1}{2", 7, r"\sqrt{2}", r"3\mid n"]
    assert [row for row, _ in check_golds(golds)] == [1, 2, 3]
    assert [row for row, _ in check_golds(golds, deep=True)] == [1, 2, 3, 6]


def test_equal_pairs_are_compared_once(verifier: MathVerifier) -> None:
    before = verifier.pool.counts["items"]
    assert verifier.verify_batch([r"\boxed{\sqrt{8}}"] * 50, [r"2\sqrt{2}"] * 50) == [True] * 50
    assert verifier.pool.counts["items"] == before + 1
    assert verifier.stats()["worker"] == 50


def test_lengths_must_agree(verifier: MathVerifier) -> None:
    with pytest.raises(InvalidInput, match="one gold a completion"):
        verifier.verify_batch(["a"], [])
    assert verifier.verify_batch([], []) == []
