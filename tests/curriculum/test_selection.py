"""Which prompts are drawn: exact probabilities, tier shares, the share of unseen prompts."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from worlds import CLASSIC as CLASSIC_SETTINGS
from worlds import examples

from dare import CurriculumConfig, InvalidInput
from dare.config import SelectionConfig
from dare.curriculum.selection import (
    Selector,
    beta_log_weight,
    clamp_difficulty,
    explore_share,
    gumbel_top_k,
    interleave,
)
from dare.curriculum.tiers import TierPolicy

DARE = CurriculumConfig.preset("dare")
CLASSIC = DARE.replace(CLASSIC_SETTINGS)
PAPER = CurriculumConfig.preset("paper")


def sequential(weight: np.ndarray, k: int) -> dict[tuple[int, ...], float]:
    """Exact probability of every ordered draw without replacement."""
    chances = {}
    for order in itertools.permutations(range(len(weight)), k):
        chance, left = 1.0, float(weight.sum())
        for item in order:
            chance *= weight[item] / left
            left -= weight[item]
        chances[order] = chance
    return chances


def assert_exact(draw: Callable[[], np.ndarray], weight: Any, k: int, count: int) -> None:
    assert_law(draw, sequential(np.asarray(weight, dtype=float), k), count)


def assert_law(
    draw: Callable[[], np.ndarray], expected: dict[tuple[int, ...], float], count: int
) -> None:
    seen = Counter(tuple(draw().tolist()) for _ in range(count))
    assert set(seen) <= set(expected)
    # Rare outcomes are pooled, as the chi-square approximation needs.
    common = [order for order, chance in expected.items() if chance * count >= 5]
    observed = [seen[order] for order in common]
    wanted = [expected[order] * count for order in common]
    rest = count - sum(wanted)
    if rest > 1e-6 * count:
        observed.append(count - sum(observed))
        wanted.append(rest)
    assert stats.chisquare(observed, wanted).pvalue > 1e-3


def tier_of(difficulty: np.ndarray) -> np.ndarray:
    return np.where(difficulty < 0.3, 0, np.where(difficulty > 0.8, 2, 1))


def naive_weight(difficulty: np.ndarray, kappa: float, eta: float, rollouts: int) -> np.ndarray:
    """METHOD 5 with scipy's Beta density."""
    margin = 1 / (2 * (rollouts + 1))
    a = 1 + kappa / 2
    density = stats.beta.pdf(np.clip(difficulty, margin, 1 - margin), a, a)
    tier = tier_of(difficulty).tolist()
    weight = []
    for t, p in zip(tier, density, strict=True):
        uniform = 1 / len(set(tier)) / tier.count(t)
        weight.append((1 - eta) * p / density.sum() + eta * uniform)
    return np.array(weight)


@pytest.mark.parametrize("k", [2, 3])
def test_gumbel_top_k_is_sequential_sampling(k: int) -> None:
    weight = np.array([5.0, 1.0, 0.2, 3.0, 2.0])
    rng = np.random.default_rng(k)
    assert_exact(lambda: gumbel_top_k(np.log(weight), k, rng), weight, k, 20_000)


def test_gumbel_top_k_knows_zero_weights_and_huge_ranges() -> None:
    rng = np.random.default_rng(0)
    assert gumbel_top_k(np.array([0.0, -np.inf, -2000.0]), 3, rng).tolist() == [0, 2]
    assert len(gumbel_top_k(np.zeros(4), 0, rng)) == 0
    assert sorted(gumbel_top_k(np.zeros(4), 9, rng).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("dense_below", [10**6, 0], ids=["dense", "lazy"])
@pytest.mark.parametrize(
    ("name", "kappa", "eta", "k"),
    [
        ("beta", 16.0, 0.3, 2),
        ("beta", 16.0, 0.3, 3),
        ("beta", 4.0, 1.0, 2),
        ("beta", 6.0, 0.0, 2),
        ("softmax", 0.0, 0.0, 2),
        ("uniform", 0.0, 0.0, 3),
        ("value", 0.0, 0.0, 2),
    ],
)
def test_selector_draws_exactly_by_its_weights(
    name: Any, kappa: float, eta: float, k: int, dense_below: int
) -> None:
    config = SelectionConfig(name=name, kappa=kappa, eta=eta, temperature=0.7)
    selector = Selector(config, 8, dense_below)
    difficulty = np.array([0.0, 0.2, 0.45, 0.7, 1.0])
    if name == "softmax":
        weight = np.exp(difficulty / 0.7)
    elif name == "uniform":
        weight = np.ones(5)
    elif name == "value":  # the signal is the log of the worth
        weight = np.exp(difficulty)
    else:
        weight = naive_weight(difficulty, kappa, eta, 8)
    tier, seen = tier_of(difficulty), np.ones(5, bool)
    np.testing.assert_allclose(selector.probability(difficulty, tier), weight / weight.sum())
    rng = np.random.default_rng(11)
    if name in ("softmax", "value") and not dense_below:  # there is one way alone
        dense, same = Selector(config, 8), np.random.default_rng(11)
        for _ in range(100):
            drawn = selector.draw(difficulty, tier, seen, k, rng)
            assert drawn.tolist() == dense.draw(difficulty, tier, seen, k, same).tolist()
        return
    # The dense way draws by the weights above, with the race that has a test of its own.
    count = 2_000 if dense_below else 6_000
    assert_exact(lambda: selector.draw(difficulty, tier, seen, k, rng), weight, k, count)


def dealt(worth: np.ndarray, eta: float, k: int) -> dict[tuple[int, ...], float]:
    """Exact law of k rows dealt from two draws in turn, each row once: one by worth, one uniform.

    Slot i is the uniform draw's where a whole number lies between i eta and (i + 1) eta, both
    shifted by a number that is uniform in [0, 1): between these bounds the deal is the same.
    """
    bounds = sorted({0.0, 1.0, *((-slot * eta) % 1.0 for slot in range(2 * k + 1))})
    by_worth, uniform = sequential(worth, k), sequential(np.ones(len(worth)), k)
    chances: Counter[tuple[int, ...]] = Counter()
    for low, high in itertools.pairwise(bounds):
        ends = [int(slot * eta + (low + high) / 2) for slot in range(2 * k + 1)]
        pattern = [after > before for before, after in itertools.pairwise(ends)]
        for (best, chance), (other, as_likely) in itertools.product(
            by_worth.items(), uniform.items()
        ):
            rows, piles = list[int](), (list(best), list(other))
            for from_uniform in pattern:
                pile = piles[from_uniform] or piles[not from_uniform]
                if pile and (row := pile.pop(0)) not in rows:
                    rows.append(row)
            chances[tuple(rows[:k])] += (high - low) * chance * as_likely
    return chances


@pytest.mark.parametrize(("eta", "k"), [(0.3, 2), (0.3, 3), (0.5, 2)])
def test_value_deals_from_a_draw_by_worth_and_a_uniform_one(eta: float, k: int) -> None:
    difficulty = np.array([0.0, 0.2, 0.45, 0.7, 1.0])
    selector = Selector(SelectionConfig(name="value", eta=eta), 8)
    tier, seen, rng = tier_of(difficulty), np.ones(5, bool), np.random.default_rng(11)
    law = dealt(np.exp(3 * difficulty), eta, k)
    assert sum(law.values()) == pytest.approx(1.0)
    assert_law(lambda: selector.draw(3 * difficulty, tier, seen, k, rng), law, 20_000)
    worth = np.exp(3 * difficulty) / np.exp(3 * difficulty).sum()
    first = (1 - eta) * worth + eta / 5
    np.testing.assert_allclose(selector.probability(3 * difficulty, tier), first)
    for row, chance in enumerate(first):  # what is told of one draw is so of the first
        assert sum(law[order] for order in law if order[0] == row) == pytest.approx(chance)


@pytest.mark.parametrize("dense_below", [10**6, 0], ids=["dense", "lazy"])
def test_unseen_and_seen_prompts_are_each_drawn_exactly_by_their_weights(dense_below: int) -> None:
    selector = Selector(SelectionConfig(name="beta", kappa=4.0, eta=0.0), 8, dense_below)
    difficulty = np.array([0.1, 0.5, 0.6, 0.9, 0.2, 0.5, 0.85, 0.4])
    seen = np.arange(8) < 4
    weight = naive_weight(difficulty, 4.0, 0.0, 8)
    rng, tier = np.random.default_rng(2), tier_of(difficulty)
    draws = [selector.draw(difficulty, tier, seen, 8, rng) for _ in range(4_000)]
    for mine in (seen, ~seen):
        rows, each = np.flatnonzero(mine), iter(draws)

        def first_two(rows: np.ndarray = rows, each: Iterator[np.ndarray] = each) -> np.ndarray:
            drawn = next(each)
            return np.searchsorted(rows, drawn[np.isin(drawn, rows)][:2])

        assert_exact(first_two, weight[rows], 2, 4_000)


def test_thompson_takes_the_samples_nearest_to_the_target() -> None:
    selector = Selector(SelectionConfig(name="thompson", target=0.4, explore="off"), 8)
    rng = np.random.default_rng(0)
    sample = rng.random(50)
    drawn = selector.draw(np.zeros(50), np.ones(50, int), np.ones(50, bool), 7, rng, sample)
    assert drawn.tolist() == sorted(range(50), key=lambda i: abs(sample[i] - 0.4))[:7]
    with pytest.raises(InvalidInput, match="posterior"):
        selector.draw(np.zeros(50), np.ones(50, int), np.ones(50, bool), 7, rng)


def test_the_weights_that_method_5_quotes() -> None:
    weight = np.exp(beta_log_weight(np.array([0.3, 0.8, 0.5]), 100.0))
    assert weight[0] == pytest.approx(1.6e-4, rel=0.05)
    assert weight[1] == pytest.approx(2e-10, rel=0.05)
    assert weight[2] == 1.0
    exact = stats.beta.pdf([0.3, 0.8], 51, 51) / stats.beta.pdf(0.5, 51, 51)
    np.testing.assert_allclose(weight[:2], exact, rtol=1e-9)


@given(st.floats(0, 1), st.integers(2, 64))
@examples(60)
def test_clamping_is_the_interval_of_method_5(difficulty: float, rollouts: int) -> None:
    low = 1 / (2 * (rollouts + 1))
    clamped = float(clamp_difficulty(np.array([difficulty]), rollouts)[0])
    assert clamped == pytest.approx(min(max(difficulty, low), 1 - low))
    assert np.isfinite(beta_log_weight(np.array([clamped]), 100.0)).all()


@pytest.mark.parametrize("config", [DARE, CLASSIC, PAPER], ids=["dare", "classic", "paper"])
def test_difficulties_of_exactly_0_and_1_can_be_drawn(config: CurriculumConfig) -> None:
    selector = Selector(config.selection, config.buffer.rollouts_per_prompt)
    difficulty = np.array([0.0, 1.0, 0.0, 1.0])
    rng = np.random.default_rng(0)
    drawn = selector.draw(difficulty, tier_of(difficulty), np.ones(4, bool), 4, rng)
    assert sorted(drawn.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("dense_below", [10**6, 0], ids=["dense", "lazy"])
def test_the_beta_part_does_not_underflow(dense_below: int) -> None:
    # Far from 0.5 a sharp density is below the smallest float; the ranking must survive that.
    selector = Selector(SelectionConfig(name="beta", kappa=4000.0, eta=0.1), 8, dense_below)
    difficulty = np.repeat([0.25, 0.2], 50)
    tier, seen = tier_of(difficulty), np.ones(100, bool)
    chance = selector.probability(difficulty, tier)
    assert chance[:50].sum() == pytest.approx(0.95)
    rng = np.random.default_rng(0)
    first = [selector.draw(difficulty, tier, seen, 1, rng)[0] < 50 for _ in range(100)]
    assert np.mean(first) == pytest.approx(0.95, abs=0.07)


def shares(config: CurriculumConfig, difficulty: Any, seen: Any, k: int, seeds: int) -> np.ndarray:
    """Mean share of each tier in the first k drawn prompts."""
    selector = Selector(config.selection, config.buffer.rollouts_per_prompt)
    tier = TierPolicy(config).assign(difficulty)
    counts = np.zeros(3)
    for seed in range(seeds):
        drawn = selector.draw(difficulty, tier, seen, k, np.random.default_rng(seed))
        counts += np.bincount(tier[drawn], minlength=3)
    return counts / counts.sum()


def test_the_paper_rule_leaves_easy_and_hard_prompts_out() -> None:
    difficulty = np.random.default_rng(0).random(5000)
    share = shares(PAPER, difficulty, np.ones(5000, bool), 64, 40)
    assert share[0] < 1e-3
    assert share[2] < 1e-3


def populations() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    size = 4000
    return {
        "uniform": rng.random(size),
        "u-shaped": rng.beta(0.3, 0.3, size),
        "mostly hard": rng.beta(6, 0.8, size),
        "mostly easy": rng.beta(0.8, 6, size),
        "bunched": np.clip(rng.normal(0.5, 0.15, size), 0, 1),
    }


COVERAGE = {"all unseen": 0.0, "start": 0.06, "half": 0.5, "late": 0.95, "all seen": 1.0}


@pytest.mark.parametrize("coverage", COVERAGE)
@pytest.mark.parametrize("population", populations())
def test_every_tier_of_the_population_has_its_part_of_the_draw(
    population: str, coverage: str
) -> None:
    difficulty = populations()[population]
    seen = np.random.default_rng(1).random(len(difficulty)) < COVERAGE[coverage]
    share = shares(CLASSIC, difficulty, seen, 64, 40)
    present = np.bincount(TierPolicy(CLASSIC).assign(difficulty), minlength=3)
    assert (share[present >= 20] >= 0.05).all(), share


@pytest.mark.parametrize("coverage", [0.06, 0.25, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("population", ["uniform", "u-shaped", "mostly hard", "mostly easy"])
def test_cold_start_estimates_in_the_middle_do_not_push_a_tier_out(
    population: str, coverage: float
) -> None:
    # Seen prompts are spread over the tiers; the unseen ones are all thought to be medium.
    rng = np.random.default_rng(3)
    seen = rng.random(4000) < coverage
    difficulty = np.where(seen, populations()[population], rng.normal(0.55, 0.03, 4000))
    share = shares(CLASSIC, difficulty, seen, 64, 40)
    present = np.bincount(TierPolicy(CLASSIC).assign(difficulty), minlength=3)
    assert (share[present >= 20] >= 0.05).all(), share


@pytest.mark.parametrize("coverage", [0.06, 0.5, 0.75, 0.95])
def test_a_tier_that_only_unseen_prompts_have_gets_its_part_all_the_same(coverage: float) -> None:
    # The worst mix: seen prompts are all medium; easy and hard are only thought to exist.
    rng = np.random.default_rng(3)
    seen = rng.random(4000) < coverage
    difficulty = np.where(seen, rng.normal(0.55, 0.03, 4000), populations()["uniform"])
    share = shares(CLASSIC, difficulty, seen, 64, 60)
    assert (share >= 0.05).all(), share


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
@examples(60)
def test_the_unseen_share_falls_with_coverage_to_its_floor(a: float, b: float, c: float) -> None:
    floor, start = sorted((a, b))
    config = SelectionConfig(explore_floor=floor, explore_start=start, explore="coverage")
    share = explore_share(config, c)
    assert share >= floor
    assert explore_share(config, 0.0) == start
    assert explore_share(config, 1.0) == floor
    assert share >= explore_share(config, min(1.0, c + 0.1))
    fixed = SelectionConfig(explore_floor=floor, explore_start=start, explore="fixed")
    assert explore_share(fixed, c) == start
    release = dataclasses.replace(config, explore="release")
    assert explore_share(release, c, met=3.0) == pytest.approx(1 / 10)  # 1 / (1 + 3^2)
    assert explore_share(release, c, met=0.0) == 1.0


@given(
    st.integers(0, 30),
    st.integers(0, 30),
    st.floats(0, 1),
    st.integers(0, 70),
    st.floats(0, 1, exclude_max=True),
)
@examples(300)
def test_interleaving_keeps_order_count_and_share(
    few: int, many: int, share: float, k: int, offset: float
) -> None:
    first, second = np.arange(few), 100 + np.arange(many)
    drawn = interleave(first, second, share, k, offset)
    assert len(drawn) == min(k, few + many)
    assert len(set(drawn.tolist())) == len(drawn)
    ours, theirs = drawn[drawn < 100], drawn[drawn >= 100]
    assert ours.tolist() == first[: len(ours)].tolist()
    assert theirs.tolist() == second[: len(theirs)].tolist()
    for size in range(1, len(drawn) + 1):
        taken = int((drawn[:size] < 100).sum())
        if taken < few and size - taken < many:  # neither pool has run out
            assert abs(taken - share * size) < 1 + 1e-9


@pytest.mark.parametrize("unseen", [1, 10, 150, 990])
@pytest.mark.parametrize("k", [32, 128])
def test_unseen_prompts_get_their_share_while_any_are_left(unseen: int, k: int) -> None:
    rng = np.random.default_rng(0)
    difficulty = rng.random(1000)
    seen = np.arange(1000) >= unseen
    difficulty[~seen] = 0.999  # nothing that the Beta rule would ever look at
    selection = PAPER.selection
    config = dataclasses.replace(selection, explore="coverage", explore_start=0.5)
    selector = Selector(config, 8)
    share = max(0.1, 0.5 * unseen / 1000)
    for seed in range(20):
        drawn = selector.draw(difficulty, tier_of(difficulty), seen, k, np.random.default_rng(seed))
        assert len(set(drawn.tolist())) == k
        fresh = int((~seen[drawn]).sum())
        assert fresh >= min(unseen, int(np.floor(share * k)))
        if 1000 - unseen >= k:  # else unseen prompts fill up
            assert fresh <= min(unseen, int(np.ceil(share * k)))


@pytest.mark.parametrize("seen", [0, 1, 2, 5, 6])
@pytest.mark.parametrize("name", ["value", "beta"])
@pytest.mark.parametrize("rule", ["coverage", "fixed", "off"])
def test_a_draw_larger_than_the_population_takes_everyone_once(
    seen: int, rule: Any, name: Any
) -> None:
    selector = Selector(SelectionConfig(name=name, explore=rule), 8)
    difficulty = np.linspace(0, 1, 6)
    mask = np.arange(6) < seen
    for seed in range(20):
        rng = np.random.default_rng(seed)
        drawn = selector.draw(difficulty, tier_of(difficulty), mask, 128, rng)
        assert sorted(drawn.tolist()) == list(range(6))


@pytest.mark.parametrize("config", [DARE, CLASSIC, PAPER], ids=["dare", "classic", "paper"])
def test_a_large_population_is_drawn_like_a_small_one(config: CurriculumConfig) -> None:
    # The lazy race of large data sets against the dense one: inclusion rates by difficulty.
    rng = np.random.default_rng(9)
    difficulty, seen = rng.random(9000), rng.random(9000) < 0.4
    tier = tier_of(difficulty)
    counts = []
    for dense_below in (10**6, 0):
        selector = Selector(config.selection, 8, dense_below)
        source = np.random.default_rng(dense_below)
        drawn = [selector.draw(difficulty, tier, seen, 64, source) for _ in range(150)]
        assert all(len(set(rows.tolist())) == 64 for rows in drawn)
        rows = np.concatenate(drawn)
        bins = np.digitize(difficulty[rows], [0.15, 0.3, 0.45, 0.5, 0.55, 0.7, 0.8, 0.9])
        counts.append(np.bincount(2 * bins + seen[rows], minlength=18))
    common = np.sum(counts, axis=0) >= 20
    observed = np.array(counts)[:, common]
    assert stats.chi2_contingency(observed).pvalue > 1e-3


def test_nothing_to_draw_from_is_refused() -> None:
    none = np.empty(0)
    with pytest.raises(InvalidInput, match="nothing to draw"):
        Selector(DARE.selection, 8).draw(
            none, none.astype(int), none.astype(bool), 3, np.random.default_rng(0)
        )


@pytest.mark.parametrize("coverage", [0.1, 0.5, 0.9])
def test_unseen_prompts_reach_their_share_beside_the_uniform_part(coverage: float) -> None:
    rng = np.random.default_rng(4)
    seen = rng.random(4000) < coverage
    difficulty = populations()["uniform"]
    config = SelectionConfig(name="beta", eta=0.2, explore="coverage", explore_start=0.5)
    selector = Selector(config, 32)
    drawn = [
        selector.draw(difficulty, tier_of(difficulty), seen, 64, np.random.default_rng(seed))
        for seed in range(40)
    ]
    assert all(len(set(rows.tolist())) == 64 for rows in drawn)
    unseen = float(np.mean([~seen[rows] for rows in drawn]))
    assert unseen >= explore_share(config, float(seen.mean())) - 0.02


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 50))
@examples(60)
def test_the_unseen_share_makes_up_for_what_the_seen_prompts_lack(
    a: float, b: float, supply: float
) -> None:
    floor, start = sorted((a, b))
    config = SelectionConfig(explore_floor=floor, explore_start=start)
    share = explore_share(config, 0.5, supply)
    assert floor <= share <= start
    assert explore_share(config, 0.5, 0.0) == start
    assert explore_share(config, 0.5, 8.0) == floor
    assert share >= explore_share(config, 0.5, supply + 1.0)


def test_a_few_medium_prompts_are_not_drawn_over_and_over() -> None:
    # 20 of 1,000 prompts are known, 10 of them medium; 32 are taken a step.
    difficulty, seen = np.full(1000, 0.6), np.arange(1000) < 20
    difficulty[10:20] = 0.0
    selector = Selector(CLASSIC.selection, 32)
    drawn = selector.draw(difficulty, tier_of(difficulty), seen, 32, np.random.default_rng(0))
    assert (~seen[drawn]).mean() >= 0.7
