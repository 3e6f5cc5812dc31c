"""The battery: pairs that a verifier gets wrong if it is careless."""

import json
from pathlib import Path

import pytest

from dare_verify.math import verify, verify_batch

PAIRS = [
    json.loads(line)
    for line in Path(__file__).with_name("pairs.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("verdict", [True, False])
def test_battery(verdict: bool) -> None:
    rows = [pair for pair in PAIRS if pair["verdict"] is verdict]
    assert len(rows) > 300
    found = verify_batch(
        [rf"Therefore $\boxed{{{row['answer']}}}$." for row in rows], [row["gold"] for row in rows]
    )
    wrong = [
        (row["gold"], row["answer"], v)
        for row, v in zip(rows, found, strict=True)
        if v is not verdict
    ]
    assert wrong == []


def test_a_gold_is_always_equal_to_itself() -> None:
    golds = sorted({pair["gold"] for pair in PAIRS if pair["gold"].strip()})
    found = verify_batch([rf"\boxed{{{gold}}}" for gold in golds], golds)
    assert [gold for gold, verdict in zip(golds, found, strict=True) if verdict is not True] == []


def test_long_integers_count_to_the_last_digit() -> None:
    digits = "7" * 9000
    assert verify(rf"\boxed{{{digits}}}", digits) is True
    assert verify(rf"\boxed{{{digits[:-1]}8}}", digits) is False
    assert verify(rf"\boxed{{{digits}}}", 10**4000) is False
    assert verify(r"\boxed{1%s}" % ("0" * 5000), "10^{5000}") is True
    assert verify(r"\boxed{1%s}" % ("0" * 4999), "10^{5000}") is False
    assert verify(rf"\boxed{{{digits}}}", 7 * (10**9000 - 1) // 9) is True


@pytest.mark.parametrize(
    ("gold", "wrong"),
    [
        ("0.1", "0.1" + "0" * 40 + "1"),
        (r"\sqrt{2}", r"\sqrt{2}+10^{-60}"),
        (r"\pi", "3." + "14159265358979323846264338327950288419716939937510"),
        (r"\frac{10^{40}}{3}", r"\frac{10^{40}+1}{3}"),
        (r"e^{\pi\sqrt{163}}", "262537412640768744"),
        (r"10^{30}\sqrt{2}", r"10^{30}\sqrt{2}+1"),
    ],
)
def test_beyond_float_precision(gold: str, wrong: str) -> None:
    assert verify(rf"\boxed{{{wrong}}}", gold) is False
