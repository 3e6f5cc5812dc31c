"""Shaped rewards and group advantages against plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import examples

from dare import CurriculumConfig, InvalidInput
from dare.config import AdvantageConfig
from dare.curriculum.advantages import advantages, shape, thinned
from dare.curriculum.tiers import TierPolicy

Rollout = tuple[float, int]
USUAL, TINY = AdvantageConfig(), AdvantageConfig(std_floor=1e-12, shape_alone=True)
GROUPS = st.lists(
    st.tuples(
        st.sampled_from([-0.5, -1e-4, 0.0, 1e-4, 0.5]),
        st.lists(st.tuples(st.sampled_from([0.0, 1.0, math.nan]), st.integers(0, 50)), min_size=1),
    ),
    max_size=6,
)


def columns(groups: list[tuple[float, list[Rollout]]]) -> list[np.ndarray]:
    """Reward, length, group, weight; the groups' rollouts are mixed up."""
    flat = [(r, n, g, w) for g, (w, rollouts) in enumerate(groups) for r, n in rollouts]
    order = np.random.default_rng(len(flat)).permutation(len(flat))
    rows = [flat[i] for i in order]
    kinds = (float, int, int, float)
    return [np.array([row[i] for row in rows], dtype=kind) for i, kind in enumerate(kinds)]


def shaped_by_hand(weight: float, scored: list[Rollout]) -> list[float]:
    """Eqs. 8 and 9 as written."""
    longest = max((n for _, n in scored), default=0)
    shaped = []
    for r, n in scored:
        part = n / longest if longest else 0.0
        if weight < 0 and r == 1:
            shaped.append(r - abs(weight) * part)
        elif weight > 0 and r == 0:
            shaped.append(r + weight * part)
        else:
            shaped.append(r)
    return shaped


def deviation(values: list[float]) -> float:
    mean = sum(values) / len(values) if values else 0.0
    return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)) if values else 0.0


def naive(
    groups: list[tuple[float, list[Rollout]]], settings: AdvantageConfig
) -> list[list[tuple[Any, ...]]]:
    """(reward, length, shaped, advantage) of every rollout."""
    result = []
    scored_of = [[(r, n) for r, n in rollouts if not math.isnan(r)] for _, rollouts in groups]
    everything = [
        s
        for (weight, _), scored in zip(groups, scored_of, strict=True)
        for s in shaped_by_hand(weight, scored)
    ]
    for (weight, rollouts), scored in zip(groups, scored_of, strict=True):
        shaped = shaped_by_hand(weight, scored)
        mean = sum(shaped) / len(shaped) if shaped else 0.0
        divisor = {
            "group": deviation(shaped) + settings.std_floor,
            "batch": deviation(everything) + settings.std_floor,
            "none": 1.0,
        }[settings.scale_rewards]
        silent = len({r for r, _ in scored}) < 2 and not settings.shape_alone
        values = iter(shaped)
        rows: list[tuple[Any, ...]] = []
        for r, n in rollouts:
            if math.isnan(r):
                rows.append((r, n, math.nan, 0.0))
            else:
                s = next(values)
                rows.append((r, n, s, 0.0 if silent else (s - mean) / divisor))
        result.append(rows)
    return result


SETTINGS = st.builds(
    AdvantageConfig,
    scale_rewards=st.sampled_from(["group", "batch", "none"]),
    std_floor=st.sampled_from([1e-6, 1e-3, 1.0]),
    shape_alone=st.booleans(),
)


@given(GROUPS, SETTINGS)
@examples(120)
def test_advantages_are_those_of_a_loop(
    groups: list[tuple[float, list[Rollout]]], settings: AdvantageConfig
) -> None:
    reward, length, group, weight = columns(groups)
    result = advantages(reward, length, group, weight, settings)
    expected = naive(groups, settings)
    for index in range(len(groups)):
        here = group == index
        mine = sorted(
            zip(
                np.nan_to_num(reward[here], nan=-1),
                length[here],
                np.nan_to_num(result.shaped_R[here], nan=-1),
                result.advantage_R[here],
                strict=True,
            )
        )
        theirs = sorted(
            (
                *(-1 if math.isnan(v) else v for v in row[:1]),
                row[1],
                *np.nan_to_num(row[2:], nan=-1),
            )
            for row in expected[index]
        )
        np.testing.assert_allclose(np.array(mine), np.array(theirs), rtol=1e-6, atol=1e-9)
        raw = {r for r, _ in groups[index][1] if not math.isnan(r)}
        assert result.varied_N[index] == (len(raw) > 1)
    mass = [sum(abs(row[3]) for row in rows) for rows in expected]
    alone = sum(m for m, varied in zip(mass, result.varied_N, strict=True) if not varied)
    share = alone / sum(mass) if sum(mass) > 1e-9 else 0.0
    assert result.shaping_share == pytest.approx(share, abs=1e-6)


def test_shaping_share_by_hand() -> None:
    # Two rollouts: all right, lengths 1 and 3 (advantages -+1); then one right, one wrong (+-1).
    reward = np.array([1.0, 1.0, 1.0, 0.0])
    length = np.array([1, 3, 5, 5])
    group = np.array([0, 0, 1, 1])
    weight = np.array([-0.3, -0.3, 0.0, 0.0])
    alone = AdvantageConfig(std_floor=1e-9, shape_alone=True)
    result = advantages(reward, length, group, weight, alone)
    np.testing.assert_allclose(result.shaped_R, [1 - 0.1, 1 - 0.3, 1, 0])
    np.testing.assert_allclose(result.advantage_R, [1, -1, 1, -1], rtol=1e-6)
    assert result.varied_N.tolist() == [False, True]
    assert result.shaping_share == pytest.approx(0.5)
    # Without a difference in length nothing is left of the first group.
    equal = advantages(reward, np.array([3, 3, 5, 5]), group, weight, alone)
    assert equal.shaping_share == 0
    assert equal.advantage_R[:2].tolist() == [0, 0]


def test_a_large_floor_silences_shaping_and_a_tiny_one_does_not() -> None:
    reward, length = np.ones(4), np.array([10, 20, 30, 40])
    group, weight = np.zeros(4, int), np.full(4, -1e-4)

    def with_floor(floor: float) -> np.ndarray:
        settings = AdvantageConfig(std_floor=floor, shape_alone=True)
        return advantages(reward, length, group, weight, settings).advantage_R

    loud, quiet = with_floor(1e-6), with_floor(1e-2)
    assert np.abs(loud).max() > 1  # order one, whatever lambda is (METHOD 6)
    assert np.abs(quiet).max() < 0.01
    assert np.argmax(loud) == 0


def test_shaping_is_never_alone_unless_asked_for() -> None:
    """All right, all wrong and mixed, each with lengths that differ."""
    reward = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    length = np.array([1, 2, 3] * 3)
    group, weight = np.repeat([0, 1, 2], 3), np.repeat([-0.3, 0.3, -0.3], 3)
    for scale in ("group", "batch", "none"):
        result = advantages(
            reward, length, group, weight, AdvantageConfig(scale_rewards=scale, std_floor=1e-9)
        )
        assert result.advantage_R[:6].tolist() == [0.0] * 6
        assert result.shaping_share == 0
        # Where right and wrong are both there the shorter right one still comes first.
        assert result.advantage_R[6] > result.advantage_R[7] > 0 > result.advantage_R[8]
    asked = AdvantageConfig(shape_alone=True)
    loud = advantages(reward, length, group, weight, asked)
    assert np.abs(loud.advantage_R[:6]).max() > 1
    assert loud.shaping_share > 0.5
    assert np.array_equal(  # mixed groups do not notice the switch
        loud.advantage_R[6:], advantages(reward, length, group, weight, USUAL).advantage_R[6:]
    )


def test_scales_by_hand() -> None:
    """Groups 1 1 1 0 and 1 0; all six: mean 2/3, variance 2/9."""
    reward, group = np.array([1.0, 1.0, 1.0, 0.0, 1.0, 0.0]), np.array([0, 0, 0, 0, 1, 1])
    length, weight = np.full(6, 7), np.zeros(6)
    centred = np.array([0.25, 0.25, 0.25, -0.75, 0.5, -0.5])
    scales = {"group": np.sqrt([3 / 16] * 4 + [1 / 4] * 2), "batch": math.sqrt(2 / 9), "none": 1.0}
    for scale, divisor in scales.items():
        settings = AdvantageConfig(scale_rewards=scale, std_floor=1e-12)
        found = advantages(reward, length, group, weight, settings).advantage_R
        np.testing.assert_allclose(found, centred / divisor, rtol=1e-9)


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 0.7])
def test_equal_rewards_give_exactly_zero_without_shaping(rate: float) -> None:
    reward = np.full(7, rate)
    result = advantages(reward, np.arange(7), np.zeros(7, int), np.zeros(7), TINY)
    assert result.advantage_R.tolist() == [0.0] * 7


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.integers(0, 5000)), min_size=2, max_size=16),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1),
)
@examples(120)
def test_no_wrong_rollout_outranks_a_right_one(
    rollouts: list[Rollout], strength: float, difficulty: float
) -> None:
    config = CurriculumConfig.from_dict(
        {"tiers": True, "easy.length_penalty": strength, "hard.length_bonus": strength}
    )
    policy = TierPolicy(config)
    level = np.array([difficulty])
    weight = policy.shaping_weight(policy.assign(level), level)[0]
    reward = np.array([r for r, _ in rollouts])
    length = np.array([n for _, n in rollouts])
    group, weights = np.zeros(len(rollouts), int), np.full(len(rollouts), weight)
    shaped = shape(reward, length, group, weights)
    assert (shaped >= 0).all()
    assert (shaped <= 1).all()
    value = advantages(reward, length, group, weights, USUAL).advantage_R
    right, wrong = reward == 1, reward == 0
    if right.any() and wrong.any():
        assert shaped[right].min() > shaped[wrong].max()
        assert value[right].min() > value[wrong].max()
    # Shorter right answers on easy prompts, longer wrong ones on hard prompts.
    for kind, sign in ((right, -1), (wrong, 1)):
        order = np.argsort(length[kind], kind="stable")
        assert (np.diff(sign * shaped[kind][order]) >= 0).all()


def test_shaping_has_the_scale_of_the_rewards() -> None:
    """Rewards on another scale, with the same successes: the same advantages, and no overtaking."""
    success, length = np.array([1.0, 1.0, 0.0, 0.0]), np.array([10, 5, 8, 2])
    group, weight = np.zeros(4, int), np.full(4, 0.9)
    plain = advantages(success, length, group, weight, TINY).advantage_R
    other = advantages(40 * success - 30, length, group, weight, TINY, success).advantage_R
    np.testing.assert_allclose(plain, other, atol=1e-9)
    near = np.array([0.52, 0.9, 0.5, 0.1])  # right from 0.52 on
    for sign in (-1, 1):
        shaped = shape(near, length, group, sign * weight, success)
        assert shaped[:2].min() > shaped[2:].max()
    np.testing.assert_array_equal(shape(near, length, group, weight, 1 - success), near)


def test_t_max_is_the_longest_of_the_group_and_not_of_the_batch() -> None:
    reward = np.ones(4)
    length, group = np.array([10, 5, 1000, 500]), np.array([0, 0, 1, 1])
    shaped = shape(reward, length, group, np.full(4, -0.5))
    np.testing.assert_allclose(shaped, [0.5, 0.75, 0.5, 0.75])


def test_lambda_of_one_is_refused() -> None:
    one = np.array([1.0])
    with pytest.raises(InvalidInput, match="below 1"):
        shape(one, one, np.zeros(1, int), -one)


def test_thinning_leaves_the_expected_gradient_and_trains_on_less() -> None:
    """Each rollout's mean over many draws is its advantage; the share kept is |advantage|/below."""
    value = np.array([2.65, -0.378, 0.577, -1.0, 0.0, 0.6])
    size = np.sqrt(np.mean(value[value != 0] ** 2))
    rng = np.random.default_rng(0)
    drawn = np.array([thinned(value, 0.6, rng) for _ in range(40_000)])
    np.testing.assert_allclose(drawn.mean(axis=0), value, atol=0.02)
    kept = (drawn != 0).mean(axis=0)
    np.testing.assert_allclose(kept, np.minimum(np.abs(value) / (0.6 * size), 1), atol=0.01)
    assert 0.1 < kept[1] < 0.9


def test_thinning_does_not_depend_on_the_range_of_rewards() -> None:
    """Without division by a deviation advantages may be tiny; as many are kept."""
    value = np.random.default_rng(0).normal(size=400)
    whole, tiny = (thinned(c * value, 0.6, np.random.default_rng(1)) for c in (1.0, 1e-3))
    np.testing.assert_allclose(tiny, 1e-3 * whole)
    assert 0 < np.count_nonzero(whole == 0) < 200
    assert thinned(value, 0.0, np.random.default_rng(1)) is value
    nothing = np.zeros(4)
    assert thinned(nothing, 0.6, np.random.default_rng(1)) is nothing


def test_thinning_is_refused_outside_its_range() -> None:
    """The error names the setting."""
    with pytest.raises(InvalidInput, match="thin_below"):
        AdvantageConfig(thin_below=-1.0)
