"""Tiers, shaping weights and the exact fill of the budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import examples

from dare import CurriculumConfig, InvalidInput
from dare.curriculum import Tier
from dare.curriculum.tiers import TierPolicy, fill_budget

TIERED = TierPolicy(CurriculumConfig(tiers=True))


def test_both_thresholds_are_medium() -> None:
    edge = np.array([0.0, np.nextafter(0.3, 0), 0.3, 0.5, 0.8, np.nextafter(0.8, 1), 1.0])
    easy, medium, hard = Tier.EASY, Tier.MEDIUM, Tier.HARD
    assert TIERED.assign(edge).tolist() == [easy, easy, medium, medium, medium, hard, hard]


@given(st.integers(0, 90), st.integers(1, 100), st.lists(st.floats(0, 1), max_size=20))
@examples(80)
def test_tiers_and_shaping_weights_are_those_of_the_paper(
    below: int, gap: int, difficulties: list[float]
) -> None:
    easy, hard = below / 100, min(100, below + gap) / 100
    config = CurriculumConfig.from_dict(
        {
            "tiers": True,
            "easy.below": easy,
            "hard.above": hard,
            "easy.length_penalty": 0.02,
            "hard.length_bonus": 0.03,
        }
    )
    policy = TierPolicy(config)
    difficulty = np.array(difficulties)
    tier = policy.assign(difficulty)
    weight = policy.shaping_weight(tier, difficulty)
    for t, w, d in zip(tier.tolist(), weight.tolist(), difficulties, strict=True):
        if d < easy:
            assert t == Tier.EASY
            assert w == pytest.approx(-0.02 * min(max((easy - d) / easy, 0), 1))
        elif d > hard:
            assert t == Tier.HARD
            assert w == pytest.approx(0.03 * min(max((d - hard) / (1 - hard), 0), 1))
        else:
            assert t == Tier.MEDIUM
            assert w == 0


def test_each_tier_gets_what_method_6_says() -> None:
    assert TIERED.group_size.tolist() == [4, 8, 16]
    assert TIERED.max_tokens.tolist() == [1536, 3072, 3072]
    assert (1 - TIERED.clip_low).tolist() == pytest.approx([0.8, 0.8, 0.8])
    assert (1 + TIERED.clip_high).tolist() == pytest.approx([1.6, 1.2, 1.2])
    size = np.array([4, 8, 16, 5, 20])
    tier = np.array([0, 1, 2, 2, 2])
    assert TIERED.plain(tier, size).tolist() == [4, 8, 8, 5, 8]


def test_without_tiers_everything_is_medium_and_unshaped() -> None:
    assert CurriculumConfig() == CurriculumConfig(tiers=False)
    policy = TierPolicy(CurriculumConfig())
    difficulty = np.array([0.0, 0.5, 1.0])
    tier = policy.assign(difficulty)
    assert tier.tolist() == [Tier.MEDIUM] * 3
    assert policy.group_size.tolist() == [8, 8, 8]
    assert policy.max_tokens.tolist() == [3072] * 3
    assert policy.clip_high.tolist() == [0.2] * 3
    assert policy.shaping_weight(tier, difficulty).tolist() == [0, 0, 0]
    assert policy.plain(tier, np.array([8, 16, 4])).tolist() == [8, 16, 4]


@given(st.lists(st.integers(2, 20), min_size=1, max_size=40), st.integers(2, 300))
@examples(300)
def test_the_budget_is_filled_exactly_in_drawn_order(sizes: list[int], budget: int) -> None:
    filled = fill_budget(np.array(sizes), budget).tolist()
    assert sum(filled) == budget
    assert min(filled) >= 2
    assert len(filled) <= len(sizes)
    if sum(sizes) >= budget:
        # A prefix of the draw, whole but for its last group.
        assert filled[:-1] == sizes[: len(filled) - 1]
        assert filled[-1] <= sizes[len(filled) - 1] + 1
        assert sum(sizes[: len(filled) - 1]) < budget
    else:
        grown = [f - s for f, s in zip(filled, sizes, strict=True)]
        assert max(grown) - min(grown) <= 1
        assert min(grown) >= 0


@pytest.mark.parametrize(
    ("sizes", "budget", "fix"),
    [([], 8, "nothing to fill"), ([8], 1, "at least one group of 2"), ([8, 1], 8, "at least 2")],
)
def test_what_cannot_be_filled_is_refused(sizes: list[int], budget: int, fix: str) -> None:
    with pytest.raises(InvalidInput, match=fix):
        fill_budget(np.array(sizes, dtype=int), budget)


@pytest.mark.parametrize("off", ["easy", "hard"])
def test_a_treatment_that_is_off_is_the_medium_one_under_the_old_name(off: str) -> None:
    policy = TierPolicy(CurriculumConfig.from_dict({"tiers": True, f"{off}.use": False}))
    difficulty = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    tier = TIERED.assign(difficulty)
    assert policy.assign(difficulty).tolist() == tier.tolist()
    row = Tier[off.upper()]
    for name in ("group_size", "max_tokens", "clip_low", "clip_high"):
        mine, usual = getattr(policy, name), getattr(TIERED, name)
        others = [place for place in Tier if place != row]
        assert mine[row] == usual[Tier.MEDIUM]
        assert mine[others].tolist() == usual[others].tolist()
    weight, usual = (p.shaping_weight(tier, difficulty) for p in (policy, TIERED))
    assert not weight[tier == row].any()
    assert weight[tier != row].tolist() == usual[tier != row].tolist()
    size = policy.group_size[tier]
    plain = size if off == "hard" else np.minimum(size, 8)
    assert policy.plain(tier, size).tolist() == plain.tolist()
