"""When an engine is said to have the weights of before, by simulated log-probs and their noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dare.policy.stale import Staleness, told_once

TOKENS = 120


def transfers(
    update: float,
    count: int,
    *,
    noise: float = 1.0,
    rounding: float = 0.0,
    bias: float = 0.0,
    along: float = 0.0,
    stale: bool = False,
) -> tuple[int | None, float]:
    """At which transfer the engine is given up, and the most evidence before. Each update moves
    log-probs by `update`, `along` as much in the direction of the last as at random; the engine
    errs by `noise` and always by `bias`, the policy's own pass by `rounding`."""
    rng, watched, most = np.random.default_rng(0), Staleness(), 0.0
    true, step, same = np.zeros(TOKENS), np.zeros(TOKENS), bias * rng.normal(size=TOKENS)
    first = true
    for place in range(count):
        told = (first if stale else true) + same + noise * rng.normal(size=TOKENS)
        if watched.add("tokens", told, true + rounding * rng.normal(size=TOKENS)):
            return place, most
        most = max(most, watched.evidence)
        step = along * step + update * np.sqrt(1 - along**2) * rng.normal(size=TOKENS)
        true = true + step
    return None, most


@pytest.mark.parametrize("update", [1e-3, 0.1, 1.0, 10.0])
@pytest.mark.parametrize(
    "errors",
    [
        {"rounding": 0.0},
        {"rounding": 1.0},  # updates smaller than this are lost in it
        {"bias": 3.0, "noise": 0.1, "rounding": 0.1},
        {"bias": 3.0, "noise": 0.1, "rounding": 0.1, "along": 0.99},  # as if it lagged behind
    ],
)
def test_ten_thousand_honest_transfers_raise_no_alarm(update: float, errors: Any) -> None:
    assert transfers(update, 10_000, **errors)[0] is None


def test_a_stale_engine_is_seen_at_once_where_it_says_exactly_the_same() -> None:
    assert transfers(1e-6, 10, noise=0.0, stale=True)[0] in (1, 2, 3)


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("along", [0.0, 0.9])
def test_a_stale_engine_is_seen_in_noise_as_large_as_an_update(bias: float, along: float) -> None:
    found, _ = transfers(1.0, 20, noise=1.0, bias=bias, along=along, stale=True)
    assert found is not None


def test_an_unchanged_policy_adds_nothing_whatever_the_engine_says() -> None:
    watched, rng = Staleness(), np.random.default_rng(0)
    for _ in range(100):
        assert not watched.add("tokens", rng.normal(size=9), np.zeros(9))
    assert watched.evidence == 0.0


def test_the_first_transfer_and_other_tokens_begin_anew() -> None:
    watched, rng = Staleness(), np.random.default_rng(0)
    for place in range(100):  # the engine says the same for ever
        assert not watched.add(place // 2, np.zeros(9), rng.normal(size=9))
        assert place % 2 or watched.evidence == 0.0


def test_a_token_behind_the_same_beginning_counts_once() -> None:
    assert told_once([[1, 2, 3], [1, 2, 4], [1, 2, 3], [2, 2]]) == [0, 1, 3, 6]
    assert told_once([[5, 5]]) == [0]
    rng, watched, texts = np.random.default_rng(0), Staleness(), [list(range(64))] * 8
    kept, new = told_once(texts), np.zeros(63)
    assert kept == list(range(63))
    for _ in range(1000):  # eight texts that are one: as eight they ended honest runs
        new = new + 0.01 * rng.normal(size=63)
        told = np.tile(new + rng.normal(size=63), 8)
        assert not watched.add(texts, told[kept], np.tile(new, 8)[kept])
