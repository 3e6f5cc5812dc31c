"""Foresight: the regression, its worth in rollouts, and what the curriculum does with it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta
from worlds import roll, run, same, scorer, services, small, table, truth

from dare import Curriculum, InvalidInput
from dare.config import ForesightConfig
from dare.curriculum import Services
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators import Measured
from dare.curriculum.estimators.base import Outcome
from dare.curriculum.estimators.dare.features import STATISTICS, solution_statistics
from dare.curriculum.estimators.snis import SnisEstimator
from dare.curriculum.foresight import Foresight
from dare.curriculum.refresh import ScoreRequest
from dare.curriculum.selection import explore_share


def solutions(rate_P: np.ndarray, seed: int = 0, noise: float = 0.0) -> Services:
    """Solutions whose least likely number has the chance of success; other tokens say little."""
    rng = np.random.default_rng(seed)
    logit = np.log((1 - rate_P + 1e-3) / (rate_P + 1e-3)) + noise * rng.normal(size=len(rate_P))
    lowest = -np.log1p(np.exp(-logit))
    length = rng.integers(5, 40, len(rate_P)).astype(float)
    others = -0.01 * rng.random((len(rate_P), 2)) - 1e-3
    total = lowest + others.sum(1)
    values = np.column_stack([length, total, lowest, others[:, 0], total - others[:, 0], lowest])
    return Services(solutions=lambda rows: Measured(values[rows], int(length[rows].sum())))


def world(count: int, seed: int = 1) -> np.ndarray:
    """Failure rates, most of them near 0 or 1."""
    return np.random.default_rng(seed).beta(0.4, 0.4, count)


def outcome(rows: np.ndarray, rate: np.ndarray, trials: int, step: int, seed: int) -> Outcome:
    failures = np.random.default_rng(seed).binomial(trials, rate[rows]).astype(float)
    return Outcome(step, rows, np.full(len(rows), float(trials)), failures)


def test_statistics_of_ragged_solutions_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    sizes = np.array([1, 2, 3, 7, 40])
    logprobs = -rng.exponential(size=sizes.sum())
    number = rng.random(sizes.sum()) < 0.5
    found = solution_statistics(logprobs, sizes, number)
    start = 0
    for row, size in zip(found, sizes, strict=True):
        part = logprobs[start : start + size]
        numbers = [part[place] for place in range(1, size) if number[start + place]]
        low = min(numbers, default=0.0)
        assert np.allclose(row, [size, sum(part), min(part), part[0], sum(numbers), low])
        start += size


@pytest.mark.parametrize("strength", [2.0, 8.0])
def test_the_strength_is_that_of_the_beta_the_truth_is_drawn_from(strength: float) -> None:
    """The statistics tell the mean m; the true rate is Beta(s m, s (1 - m)) around it."""
    rng = np.random.default_rng(3)
    mean = rng.uniform(0.05, 0.95, 4000)
    rate = rng.beta(strength * mean, strength * (1 - mean))
    served = solutions(mean)
    foresight = Foresight(4000, ForesightConfig(memory=4000), served.solutions)
    foresight.read_all(0)
    for step in range(40):
        rows = np.arange(step * 100, (step + 1) * 100)
        foresight.observe(outcome(rows, rate, 8, step, step))
    assert foresight.strength == pytest.approx(strength, rel=0.35)


def test_unseen_prompts_are_predicted_from_a_few_groups() -> None:
    rate = world(2000)
    foresight = Foresight(2000, ForesightConfig(), solutions(rate).solutions)
    foresight.read_all(0)
    assert not foresight.ready
    rows = np.arange(64)
    foresight.observe(outcome(rows, rate, 8, 0, 5))
    unseen = np.arange(64, 2000)
    error = np.abs(foresight.predict(unseen, 0) - rate[unseen])
    fresh = np.abs(np.random.default_rng(0).binomial(8, rate[unseen]) / 8 - rate[unseen])
    assert error.mean() < fresh.mean()


def test_solutions_that_say_nothing_give_the_mean_and_little_strength() -> None:
    rate = world(2000)
    served = solutions(np.random.default_rng(9).permutation(rate))
    foresight = Foresight(2000, ForesightConfig(), served.solutions)
    foresight.read_all(0)
    for step in range(10):
        foresight.observe(outcome(np.arange(step * 64, step * 64 + 64), rate, 8, step, step))
    predicted = foresight.predict(np.arange(1000, 2000), 10)
    assert abs(predicted.mean() - rate.mean()) < 0.05
    assert predicted.std() < 0.2
    assert foresight.strength < 1.5


def spoilt(rate_P: np.ndarray, rows: np.ndarray, value: float) -> Foresight:
    """Solutions that have all been read, those of some rows with this instead of log-probs."""
    full = solutions(rate_P).solutions
    assert full is not None

    def some(asked: np.ndarray) -> Measured:
        values, tokens = full(asked)
        bad = np.isin(asked, rows)[:, None] & (np.arange(STATISTICS) > 0)
        return Measured(np.where(bad, value, values), tokens)

    foresight = Foresight(len(rate_P), ForesightConfig(), some)
    foresight.read_all(0)
    foresight.observe(outcome(np.arange(100), rate_P, 8, 0, 0))
    return foresight


def test_a_prompt_without_a_solution_is_left_to_the_cold_start() -> None:
    foresight = spoilt(world(400), np.arange(1, 400, 2), np.nan)
    assert foresight.known_P.tolist() == [row % 2 == 0 for row in range(400)]
    assert len(foresight.arrays["memory_trials"]) == 50


def test_a_solution_of_no_likelihood_harms_no_other() -> None:
    foresight = spoilt(world(400), np.array([300]), -np.inf)
    assert not foresight.known_P[300]
    assert np.isfinite(foresight.predict(np.arange(300), 0)).all()


def test_prompts_that_join_the_data_are_read_first() -> None:
    foresight = Foresight(100, ForesightConfig(), solutions(world(100)).solutions)
    foresight.read(np.arange(90), 3)
    foresight.refresh(np.ones(100), 4, 10**9)
    assert (foresight.arrays["prompt_step"][90:] == 4).sum() >= 5
    foresight.refresh(np.ones(100), 5, 10**9)
    assert foresight.known_P.all()


def recorded(count: int, asked: list[np.ndarray]) -> Foresight:
    """All solutions read once; what is read later is noted."""
    served = solutions(world(count))

    def measure(rows: np.ndarray) -> Measured:
        asked.append(rows)
        assert served.solutions is not None
        return served.solutions(rows)

    foresight = Foresight(count, ForesightConfig(), measure)
    foresight.read_all(0)
    asked.clear()
    return foresight


def test_refresh_reads_the_uncertain_and_stale_within_its_budget() -> None:
    asked: list[np.ndarray] = []
    foresight = recorded(200, asked)
    difficulty = np.where(np.arange(200) < 20, 0.7, 0.999)
    spent = foresight.refresh(difficulty, 4, 300)
    assert 0 < spent <= 300
    assert (asked[-1] < 20).mean() > 0.9
    whole = float(foresight.arrays["prompt_statistics"][:, 0].sum())
    while spent := foresight.refresh(difficulty, 4, 10**9):  # those just read are not stale
        assert spent <= whole / 8  # however much is allowed, all of it takes eight steps
    again = np.concatenate(asked)
    assert sorted(again.tolist()) == list(range(200))  # everything once, nothing twice


def test_prompts_that_look_certain_are_read_again_too_but_seldom() -> None:
    asked: list[np.ndarray] = []
    foresight = recorded(200, asked)
    difficulty = np.where(np.arange(200) < 20, 0.5, np.arange(200) % 2)
    for step in range(1, 401):
        foresight.refresh(difficulty, step, 300)
    times = np.bincount(np.concatenate(asked), minlength=200)
    assert times.min() >= 1
    assert times[:20].mean() > 5 * times[20:].mean()


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75])
def test_reading_and_rescoring_share_one_budget(share: float) -> None:
    scored: list[int] = []

    def recorder(request: ScoreRequest) -> np.ndarray:
        scored.append(int(request.rollouts.offsets[-1]))
        return scorer(request)

    found = []
    for use in (True, False):
        curriculum = make(**{"foresight.use": use, "foresight.share": share})
        run(curriculum, 3, refresh=None)
        spent = curriculum.refresh(recorder, 400)
        assert 300 < spent <= 400  # one prompt's rollouts or a solution short of it, at the most
        found.append(spent - scored[-1])
    assert found[1] == 0  # without solutions all of it is for rescoring
    assert 400 * share - 40 < found[0] <= 400 * share


@pytest.mark.parametrize("strength", [2.5, 6.0, 30.0])
def test_an_untried_prompt_has_the_median_of_its_forecast(strength: float) -> None:
    """The number with least expected |error| under the Beta that a forecast stands for."""
    rates = np.array([0.02, 0.1, 0.3, 0.5, 0.8, 0.97, np.nan])
    config = small("dare")
    estimator = SnisEstimator(len(rates), RolloutBuffer(8, 4), config.estimator)
    estimator.set_forecast(rates, strength)
    estimator.refresh(0, np.random.default_rng(0))
    worth = min(strength, 4.0)
    median = beta.median(worth * rates[:-1], worth * (1 - rates[:-1]))
    assert np.abs(estimator.difficulty()[:-1] - median).max() < 0.05
    assert estimator.difficulty()[-1] == 0.5  # no solution: the cold start


def test_bad_statistics_are_refused() -> None:
    foresight = Foresight(5, ForesightConfig(), lambda rows: Measured(np.zeros((2, 2)), 0))
    with pytest.raises(InvalidInput, match=rf"services.solutions.*5 rows of {STATISTICS}"):
        foresight.read_all(0)


def test_the_unseen_share_follows_the_supply_on_both_sides() -> None:
    selection = small("dare").selection
    assert explore_share(selection, 0.5, 3.0, 1.0) == pytest.approx(0.25)
    assert explore_share(selection, 0.5, 100.0, 0.0) == selection.explore_floor
    assert explore_share(selection, 0.5, 0.0, 100.0) == selection.explore_start


def make(count: int = 200, **changes: object) -> Curriculum:
    prompts, base = table(count), services(count)
    given = solutions(truth(prompts)).solutions
    both = Services(solutions=given, decode=base.decode, embeddings=base.embeddings)
    config = small("dare", **{"cold_start.references": 32, **changes})
    return Curriculum(prompts, config, both)


def test_the_first_draw_is_of_unseen_prompts_of_medium_difficulty() -> None:
    worth = []
    for use in (True, False):
        curriculum = make(600, **{"foresight.use": use, "fresh_share": 1.0})
        rate = truth(curriculum.prompts)
        while not curriculum.cold_start.finished:
            curriculum.observe(roll(curriculum.plan(), curriculum.prompts, rate))
        drawn = curriculum.plan().prompt_P
        worth.append(float(np.mean(rate[drawn] * (1 - rate[drawn]))))
    assert worth[0] > 1.15 * worth[1]


def test_without_solutions_or_with_another_estimator_there_is_none() -> None:
    assert make().foresight is not None
    assert make(**{"foresight.use": False}).foresight is None
    assert make(**{"estimator.name": "paper"}).foresight is None
    assert Curriculum(table(20), small("dare"), services(20)).foresight is None


def test_a_resumed_curriculum_makes_the_same_plans() -> None:
    first, second = make(), make()
    run(first, 4)
    assert first.foresight is not None
    assert first.foresight.ready
    second.load_state_dict(first.state_dict())
    assert same(run(first, 5), run(second, 5))


def test_a_state_without_solutions_is_refused() -> None:
    plain = Curriculum(table(200), make().config, services(200))
    with pytest.raises(InvalidInput, match="foresight"):
        make().load_state_dict(plain.state_dict())


@pytest.mark.parametrize("name", ["prompt_statistics", "map_weight"])
def test_a_state_of_another_version_is_refused(name: str) -> None:
    rate = world(100)
    foresight = Foresight(100, ForesightConfig(), solutions(rate).solutions)
    foresight.read_all(0)
    state = dict(foresight.arrays)
    value = state.pop(name)
    if name == "prompt_statistics":
        state[name] = value[:, 1:]
    fresh = Foresight(100, ForesightConfig(), solutions(rate).solutions)
    with pytest.raises(InvalidInput, match=r"foresight state.*another version"):
        fresh.load(state, foresight.scalars)
    assert not fresh.begun
