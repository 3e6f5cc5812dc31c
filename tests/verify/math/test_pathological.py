"""Sixteen hostile answers in a batch of a thousand cost little, and no other row its verdict."""

import time

import pytest

from dare_verify.math import MathVerifier, default
from dare_verify.math.judge import quick

HOSTILE = [
    r"9^{9^{9^{9}}}", r"2^{2^{2^{2^{2^{2}}}}}", r"10^{10^{10}}", r"(10^{100})!", r"(((7!)!)!)!",
    r"\sum_{k=1}^{10^{9}} \frac{1}{k^2+\sqrt{k}}", r"\prod_{k=1}^{100000} (k+\sqrt{k})",
    "(" * 400 + "x" + ")" * 400, r"\sqrt{" * 200 + "2" + "}" * 200, r"\log(" * 60 + "5" + ")" * 60,
    "+".join(rf"\sqrt{{{k}}}" for k in range(2, 900)), "(x+y+z)^{200}(x-y)^{300}",
    r"\int_0^1 \int_0^1 \frac{e^{x y}}{\sqrt{1+x^4 y^4}} dx dy", r"\log " * 12 + "5",
    "-" * 1500 + "1", "1" * 5000 + "^{" + "7" * 50 + "}",
]  # fmt: skip


# What the calling process itself looks at before any worker: nothing there can be killed.
LABORIOUS = [
    "+".join(rf"\frac{{1}}{{{k}^{{99999}}}}" for k in (3, 5, 7, 11, 13, 17, 19, 23)),
    "+".join(rf"\sqrt{{7^{{{k}}}}}" for k in range(5001, 5100)),
    "+".join(rf"\sqrt[3]{{7^{{{k}}}}}" for k in range(5001, 5100)),
    "+".join(["3^{99999}"] * 200),
    "+".join([r"\binom{20000}{10000}"] * 90),
    "*".join(rf"\frac{{{k}^{{9999}}}}{{{k + 1}^{{9999}}}}" for k in range(11, 60)),
    "(" * 24 + "1," * 950 + ")" * 24,
    "½" * 1900,
    "+".join(["1"] * 900),
    "|" * 1900,
    "0." + "1" * 99_990,
    ",".join(["1"] * 990),
]


@pytest.mark.parametrize("gold", ["5", r"\frac{1}{\sqrt{2}}", "x^2+1", "1,2,3"])
def test_the_calling_process_is_never_held_up(gold: str) -> None:
    start = time.process_time()
    assert not any(quick(gold, answer)[0] for answer in LABORIOUS)
    assert time.process_time() - start < 3.0


def batch() -> tuple[list[str], list[str]]:
    texts = [rf"\boxed{{\frac{{{k}\sqrt{{{k + 2}}}}}{{{k + 2}}}}}" for k in range(200)]
    golds = [rf"\frac{{{k}}}{{\sqrt{{{k + 2}}}}}" for k in range(200)]
    return texts + [rf"\boxed{{{k}/7}}" for k in range(800)], golds + [
        rf"\frac{{{k}}}{{7}}" for k in range(800)
    ]


@pytest.fixture(scope="module")
def verifier() -> MathVerifier:
    made = MathVerifier(default.pool)
    made.verify_batch([r"\boxed{\sqrt{8}}"], [r"2\sqrt{2}"])
    return made


def test_hostile_answers_do_not_start(verifier: MathVerifier) -> None:
    texts, golds = batch()
    assert all(verifier.verify_batch(texts, golds))
    places = [60 * k + 7 for k in range(16)]
    for place, text in zip(places, HOSTILE, strict=True):
        texts[place] = rf"\boxed{{{text}}}"
    before = verifier.pool.counts["timeout"]
    found = verifier.verify_batch(texts, golds)
    assert verifier.pool.counts["timeout"] == before
    assert not any(found[place] for place in places)
    assert all(found[row] for row in range(1000) if row not in places)


@pytest.mark.usefixtures("math_pool")
@pytest.mark.parametrize("kind", ["hang", "spin"])
def test_those_that_do_start_are_killed(
    verifier: MathVerifier, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, golds = batch()
    pool, spent_s = verifier.pool, list[float]()
    discard = pool.discard
    monkeypatch.setattr(
        pool, "discard", lambda worker: (spent_s.append(worker.account().cpu_s), discard(worker))
    )
    places = [60 * k + 7 for k in range(16)]
    verifier.fault = lambda row: kind if row in places else None
    found = verifier.verify_batch(texts, golds)
    verifier.fault = None
    # A few may use their limit up, the others a quarter of it; workers did other rows before.
    assert sum(spent_s) < 3 * pool.limit_s + 13 * pool.limit_s / 4 + 8.0
    assert [row for row, verdict in enumerate(found) if verdict is None] == places
    assert all(found[row] for row in range(1000) if row not in places)
