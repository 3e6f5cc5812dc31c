"""Estimators against loops, closed forms and scipy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from worlds import batch, examples, frozen, same

from dare import CurriculumConfig, InvalidInput
from dare.config import EstimatorConfig
from dare.curriculum import RolloutBuffer, Services
from dare.curriculum.estimators import (
    CurrentEstimator,
    DynamicEstimator,
    EntropyEstimator,
    Estimator,
    GresoEstimator,
    JudgeEstimator,
    Measured,
    Outcome,
    PaperEstimator,
    PosteriorEstimator,
    PreviousEstimator,
    Replies,
    TeacherEstimator,
    UniformEstimator,
    build_estimator,
    clip_bias,
    effective_sample_size,
    parse_probability,
    snis_bound,
    snis_difficulty,
    weights,
)
from dare.curriculum.estimators.dare import LiveEstimator, RescoredEstimator

RNG = np.random.default_rng(0)
PAPER = CurriculumConfig.preset("paper").estimator


def outcome(step: int, groups: dict[int, tuple[int, int]]) -> Outcome:
    """prompt -> (rollouts, failures)."""
    rows = sorted(groups)
    return Outcome(
        step,
        np.array(rows, dtype=np.int64),
        np.array([groups[row][0] for row in rows], dtype=float),
        np.array([groups[row][1] for row in rows], dtype=float),
    )


def feed(
    estimator: Estimator,
    buffer: RolloutBuffer,
    step: int,
    rewards: dict[int, list[int]],
    seed: int = 0,
) -> None:
    """One step as the curriculum does it: buffer first, then the outcome."""
    prompt = [row for row, group in rewards.items() for _ in group]
    reward = [float(r) for group in rewards.values() for r in group]
    buffer.add(batch(prompt, reward, seed=seed), step)
    counts = {row: (len(group), len(group) - sum(group)) for row, group in rewards.items()}
    estimator.observe(outcome(step, counts))


# --- SNIS -----------------------------------------------------------------------------------------

LOG_RATIO = st.one_of(st.floats(-9, 9), st.just(-math.inf))
ROLLOUTS = st.lists(st.tuples(st.integers(0, 3), LOG_RATIO, st.sampled_from([0.0, 1.0])))


@given(ROLLOUTS, st.floats(0, 6))
@examples(150)
def test_snis_is_the_papers_sum(rollouts: list[Any], clip: float) -> None:
    index = np.array([r[0] for r in rollouts], dtype=np.int64)
    weight = weights(np.array([r[1] for r in rollouts]), clip)
    reward = np.array([r[2] for r in rollouts])
    rate, ess = snis_difficulty(weight, reward, index, 4), effective_sample_size(weight, index, 4)
    for prompt in range(4):
        mine = [
            (math.exp(min(max(ratio, -clip), clip)), r) for p, ratio, r in rollouts if p == prompt
        ]
        if not mine:
            assert (rate[prompt], ess[prompt]) == (0.5, 0)
            continue
        total = sum(w for w, _ in mine)
        assert rate[prompt] == pytest.approx(sum(w * (1 - r) for w, r in mine) / total)
        assert ess[prompt] == pytest.approx(total**2 / sum(w * w for w, _ in mine))
        assert 1 - 1e-9 <= ess[prompt] <= len(mine) + 1e-9


@pytest.mark.parametrize("k", [2, 8, 16, 31])
def test_zero_drift_has_weight_one_and_full_ess(k: int) -> None:
    weight = weights(np.zeros(k), 4.0)
    assert weight.tolist() == [1.0] * k
    assert effective_sample_size(weight, np.zeros(k, int), 1).tolist() == [k]
    buffer = RolloutBuffer(32, 10)
    estimator = PaperEstimator(1, buffer, PAPER)
    feed(estimator, buffer, 0, {0: [1] * (k // 2) + [0] * (k - k // 2)})
    buffer.rescore(buffer["uid"], buffer["behaviour"], 5)
    estimator.refresh(5, RNG)
    assert estimator.evidence().tolist() == [k]
    assert estimator.metrics()["ess"] == k


def test_minus_infinity_clips_to_the_floor_and_c_to_zero_gives_the_mean() -> None:
    assert weights(np.array([-np.inf, -40.0, 40.0]), 4.0).tolist() == pytest.approx(
        [math.exp(-4), math.exp(-4), math.exp(4)]
    )
    ratio, reward = RNG.normal(0, 5, 12), RNG.integers(0, 2, 12).astype(float)
    ratio[3] = -np.inf
    index = np.zeros(12, int)
    assert snis_difficulty(weights(ratio, 0.0), reward, index, 1)[0] == pytest.approx(
        1 - reward.mean()
    )
    assert snis_difficulty(weights(ratio, 1e-9), reward, index, 1)[0] == pytest.approx(
        1 - reward.mean()
    )


def test_snis_converges_to_the_truth_of_an_enumerable_policy() -> None:
    # Four responses; the current policy prefers other ones than the behaviour policy did.
    behaviour, current = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.3, 0.2, 0.4])
    reward = np.array([1.0, 0.0, 1.0, 0.0])
    drawn = np.random.default_rng(0).choice(4, 20_000, p=behaviour)
    weight = weights(np.log(current / behaviour)[drawn], 4.0)
    found = snis_difficulty(weight, reward[drawn], np.zeros(len(drawn), int), 1)[0]
    assert found == pytest.approx(float(current @ (1 - reward)), abs=0.02)
    assert abs(found - (1 - reward[drawn].mean())) > 0.2  # the plain mean is far off


def test_threshold_falls_back_to_the_cold_start_below_tau() -> None:
    buffer = RolloutBuffer(8, 100)
    estimator = PaperEstimator(4, buffer, PAPER)
    prior = np.array([0.11, 0.22, 0.33, 0.44])
    estimator.set_prior(prior)
    assert estimator.difficulty().tolist() == prior.tolist()
    feed(estimator, buffer, 0, {0: [1, 0, 0, 0, 0, 0, 0, 0], 1: [1, 0], 2: [1, 1, 0, 0]})
    # Two rollouts cannot have an ESS of 3; the others can.
    assert estimator.difficulty().tolist() == pytest.approx([7 / 8, 0.22, 0.5, 0.44])
    # One rollout of prompt 0 takes nearly all of the weight.
    uid = buffer["uid"]
    total = buffer["behaviour"].copy()
    total[uid == 0] += 4.0
    buffer.rescore(uid, total, 1)
    estimator.refresh(1, RNG)
    weight = [math.exp(4)] + [1.0] * 7
    ess = sum(weight) ** 2 / sum(w * w for w in weight)
    assert ess < 3
    assert estimator.evidence()[0] == pytest.approx(ess)
    assert estimator.difficulty().tolist() == pytest.approx([0.11, 0.22, 0.5, 0.44])
    assert estimator.metrics()["ess_accepted"] == pytest.approx(1 / 3)
    # Exactly tau is accepted.
    buffer.rescore([10, 11, 12, 13], [*buffer["behaviour"][10:13], -np.inf], 2)
    strict = PaperEstimator(4, buffer, EstimatorConfig(ess_threshold=4.0))
    strict.refresh(2, RNG)
    assert strict.difficulty()[2] == 0.5  # prior: ESS is just above 3
    buffer.rescore([10, 11, 12, 13], buffer["behaviour"][10:], 2)
    strict.refresh(2, RNG)
    assert strict.evidence()[2] == 4.0
    assert strict.difficulty()[2] == 0.5


def test_the_release_takes_the_plain_rate_below_tau() -> None:
    buffer = RolloutBuffer(8, 100)
    config = CurriculumConfig.preset("paper-release").estimator
    estimator = PaperEstimator(4, buffer, config)
    estimator.set_prior(np.array([0.11, 0.22, 0.33, 0.44]))
    feed(estimator, buffer, 0, {0: [1, 0, 0, 0, 0, 0, 0, 0], 1: [1, 0], 2: [1, 1, 0, 0]})
    assert estimator.difficulty().tolist() == pytest.approx([7 / 8, 0.5, 0.5, 0.44])
    # The one success of prompt 0 takes nearly all of the weight: SNIS would say 7 / (e^4 + 7).
    total = buffer["behaviour"].copy()
    total[buffer["uid"] == 0] += 4.0
    # Prompt 2 keeps an ESS above 3, and is weighed.
    total[buffer["uid"] == 10] += 0.5
    buffer.rescore(buffer["uid"], total, 1)
    estimator.refresh(1, RNG)
    weighed = 2 / (math.exp(0.5) + 3)
    assert estimator.evidence()[0] < 3 < estimator.evidence()[2]
    assert estimator.difficulty().tolist() == pytest.approx([7 / 8, 0.5, weighed, 0.44])
    # A prompt that has left the buffer is back at the cold start, also at a later one.
    buffer = RolloutBuffer(8, 1)
    estimator = PaperEstimator(2, buffer, config)
    feed(estimator, buffer, 0, {0: [1, 0, 0, 0]})
    feed(estimator, buffer, 1, {1: [1, 1, 1, 0]})
    estimator.set_prior(np.array([0.6, 0.7]))
    assert estimator.difficulty().tolist() == [0.6, 0.25]


@pytest.mark.parametrize("below", ["prior", "raw"])
def test_conditioned_rollouts_never_change_an_estimate(below: Any) -> None:
    config = EstimatorConfig(below_threshold=below)
    plain, mixed = RolloutBuffer(32, 100), RolloutBuffer(32, 100)
    left, right = PaperEstimator(2, plain, config), PaperEstimator(2, mixed, config)
    fr_left, fr_right = PreviousEstimator(2, plain), PreviousEstimator(2, mixed)
    # The same eight plain rollouts; one buffer also has helped ones of either kind.
    rewards = [1, 0, 0, 0, 1, 0, 0, 1]
    plain.add(batch([0] * 8, rewards, seed=1), 0)
    mixed.add(batch([0] * 8 + [1] * 2, [*rewards, 1, 1], seed=1, conditioning=[0] * 8 + [1, 2]), 0)
    mixed.add(batch([0] * 8, [1] * 8, conditioning=[1, 2] * 4), 0)
    for estimator in (left, right, fr_left, fr_right):
        estimator.observe(outcome(0, {0: (8, 5)}))
    assert fr_left.difficulty().tolist() == fr_right.difficulty().tolist() == [5 / 8, 0.5]
    for step in (0, 3):
        left.refresh(step, RNG)
        right.refresh(step, RNG)
        assert left.difficulty().tolist() == right.difficulty().tolist() == [5 / 8, 0.5]
        assert right.evidence()[1] == 0


def test_the_bound_is_that_of_the_proposition() -> None:
    k, c, delta, b, bias = 200_000, 1.0, 0.1, 0.9, 0.03
    epsilon = math.exp(c) * math.sqrt(math.log(4 / delta) / (2 * k))
    expected = 2 * epsilon / (b - epsilon) + bias / b
    found = snis_bound(k, clip=c, delta=delta, min_mean_weight=b, clip_bias=bias)
    assert found == pytest.approx(expected)
    assert snis_bound(8, clip=4.0) == math.inf
    ratio, chance = np.array([0.001, 1.0, 100.0]), np.array([0.2, 0.5, 0.3])
    by_hand = 0.2 * (math.exp(-1) - 0.001) + 0.3 * (100 - math.e)
    assert clip_bias(ratio, chance, 1.0) == pytest.approx(by_hand)
    with pytest.raises(InvalidInput, match="delta"):
        snis_bound(8, clip=1.0, delta=0)


# --- previous-FR, MoPPS, uniform ------------------------------------------------------------------


def test_previous_fr_is_the_mean_of_the_buffer() -> None:
    rng = np.random.default_rng(0)
    buffer = RolloutBuffer(10, 12)
    estimator = PreviousEstimator(6, buffer)
    assert estimator.difficulty().tolist() == [0.5] * 6
    estimator.set_prior(np.zeros(6))
    assert estimator.difficulty().tolist() == [0.5] * 6
    for step in range(25):
        rows = rng.choice(5, 2, replace=False).tolist()
        feed(estimator, buffer, step, {row: rng.integers(0, 2, 4).tolist() for row in rows})
        for row in range(6):
            mine = [
                1 - r
                for p, r in zip(buffer["prompt"].tolist(), buffer["reward"].tolist(), strict=True)
                if p == row
            ]
            assert estimator.difficulty()[row] == (sum(mine) / len(mine) if mine else 0.5)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8)), max_size=15), st.floats(0, 1))
@examples(80)
def test_the_posterior_follows_its_formula(visits: list[tuple[int, int]], keep: float) -> None:
    estimator = PosteriorEstimator(3, keep)
    alpha, beta = [1.0] * 3, [1.0] * 3
    for step, (row, failures) in enumerate(visits):
        estimator.observe(outcome(step, {row: (8, failures)}))
        alpha[row] = keep * alpha[row] + (1 - keep) * 1 + (8 - failures)
        beta[row] = keep * beta[row] + (1 - keep) * 1 + failures
    for row in range(3):
        seen = any(r == row for r, _ in visits)
        expected = beta[row] / (alpha[row] + beta[row]) if seen else 0.5
        assert estimator.difficulty()[row] == pytest.approx(expected)
        assert estimator.evidence()[row] == pytest.approx(alpha[row] + beta[row] - 2)


def test_thompson_draws_have_the_posteriors_law() -> None:
    estimator = PosteriorEstimator(2, 0.5)
    estimator.observe(outcome(0, {0: (8, 6)}))
    estimator.observe(outcome(1, {0: (8, 7)}))
    alpha, beta = 0.5 * (0.5 + 0.5 + 2) + 0.5 + 1, 0.5 * (0.5 + 0.5 + 6) + 0.5 + 7
    rng = np.random.default_rng(1)
    drawn = np.array([estimator.sample(rng) for _ in range(3000)])
    assert stats.kstest(drawn[:, 0], stats.beta(beta, alpha).cdf).pvalue > 1e-3
    assert stats.kstest(drawn[:, 1], stats.uniform.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.06


def test_uniform_never_learns() -> None:
    estimator = UniformEstimator(3)
    estimator.set_prior(np.zeros(3))
    estimator.observe(outcome(0, {0: (8, 8)}))
    assert estimator.difficulty().tolist() == [0.5] * 3


# --- current-FR -----------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(1, 40), st.integers(1, 12), st.integers(1, 6))
@examples(60)
def test_probing_ends_and_keeps_only_the_target_interval(
    seed: int, count: int, wanted: int, max_probes: int
) -> None:
    rng = np.random.default_rng(seed)
    estimator = CurrentEstimator(count, 0.4, 0.6, wanted, max_probes)
    for step in range(3):
        rates: dict[int, float] = {}
        for _ in range(max_probes):
            rows = estimator.probe(step, rng)
            if rows is None:
                break
            assert not set(rows.tolist()) & set(rates)  # never twice in a step
            assert 1 <= len(rows) <= wanted
            failures = rng.integers(0, 9, len(rows))
            groups = {int(r): (8, int(f)) for r, f in zip(rows, failures, strict=True)}
            rates.update({row: f / 8 for row, (_, f) in groups.items()})
            estimator.observe(outcome(step, groups))
        assert estimator.probe(step, rng) is None
        kept = [row for row, rate in rates.items() if 0.4 <= rate <= 0.6]
        assert estimator.keep(step).tolist() == sorted(kept)
        # It stopped because it has enough, has tried all, or may not go on.
        enough = len(kept) >= wanted or len(rates) == count
        assert enough or len(rates) == max_probes * wanted
        for row, rate in rates.items():
            assert estimator.difficulty()[row] == rate
        assert estimator.keep(step + 1).tolist() == []


# --- entropy and judge ----------------------------------------------------------------------------


def test_entropy_is_passed_to_the_selector_and_scaled_for_the_tiers() -> None:
    values = np.array([0.5, 2.5, 1.0, 0.5])
    asked: list[list[int]] = []

    def measure(rows: Any) -> Measured:
        asked.append(rows.tolist())
        return Measured(values[rows], 64 * len(rows))

    estimator = EntropyEstimator(4, measure)
    assert estimator.refresh(0, np.random.default_rng(0)) == 256
    assert asked == [[0, 1, 2, 3]]
    assert estimator.signal().tolist() == values.tolist()
    assert estimator.difficulty().tolist() == [0.0, 1.0, 0.25, 0.0]
    partial = EntropyEstimator(4, measure, limit=2)
    assert partial.refresh(0, np.random.default_rng(0)) == 128
    known = asked[-1]
    assert len(set(known)) == 2
    for row in range(4):
        expected = values[row] if row in known else values[known].mean()
        assert partial.signal()[row] == pytest.approx(expected)
    flat = EntropyEstimator(3, lambda rows: Measured(np.ones(3), 0))
    flat.refresh(0, RNG)
    assert flat.difficulty().tolist() == [0.5] * 3


@pytest.mark.parametrize("bad", [[1.0, np.nan, 0.0], [1.0, -0.1, 0.0], [1.0, np.inf, 0.0], [1.0]])
def test_entropies_that_are_none_are_refused_and_change_nothing(bad: list[float]) -> None:
    estimator = EntropyEstimator(3, lambda rows: Measured(bad, 1))
    before = frozen(estimator.state_dict())
    with pytest.raises(InvalidInput, match="entropy"):
        estimator.refresh(0, RNG)
    assert same(estimator.state_dict(), before)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("0.7", 0.7),
        (" 0.7\n", 0.7),
        ("0.7.", 0.7),
        ("Probability: 0.35", 0.35),
        ("p=0.3", 0.3),
        ("(0.4)", 0.4),
        ("**0.25**", 0.25),
        ("~.5", 0.5),
        (".5", 0.5),
        ("1", 1.0),
        ("0", 0.0),
        ("1.0", 1.0),
        ("1.", 1.0),
        ("0.0", 0.0),
        ("1e-1", 0.1),
        ("5E-2 or so", 0.05),
        ("between 0.2 and 0.4", 0.2),
        ("0.2-0.4", 0.2),
        ("out of 10 I give 0.9", 0.9),
        ("-0.3", None),
        ("-0.3, no: 0.6", 0.6),
        ("2", None),
        ("1.5", None),
        ("I think 85%", None),
        ("85", None),
        ("1.5%", None),
        ("0.9%", None),
        ("0.5x", None),
        ("0.5% or 0.005", 0.005),
        ("nan", None),
        ("inf", None),
        ("1e9", None),
        ("v2 model", None),
        ("I cannot say", None),
        ("", None),
    ],
)
def test_the_first_number_in_the_unit_interval_is_read(reply: str, value: float | None) -> None:
    assert parse_probability(reply) == value


def test_the_judge_turns_success_into_difficulty() -> None:
    texts = ["0.7", "no idea", "I would say 0.2", "1"]
    estimator = JudgeEstimator(4, lambda rows: Replies([texts[r] for r in rows], 90))
    assert estimator.refresh(0, RNG) == 90
    assert estimator.difficulty().tolist() == pytest.approx([0.3, 0.5, 0.8, 0.0])
    assert estimator.metrics() == {"judge_unparsed": 0.25}
    part = JudgeEstimator(4, lambda rows: Replies([texts[r] for r in rows], 9), limit=1)
    part.refresh(0, np.random.default_rng(1))
    assert int((part.difficulty() == 0.5).sum()) >= 3
    short = JudgeEstimator(4, lambda rows: Replies(["0.7"], 9))
    with pytest.raises(InvalidInput, match="judge replies"):
        short.refresh(0, RNG)


# --- teacher --------------------------------------------------------------------------------------


class FakeHead:
    """Predicts the mean success of the references, and records what it was shown."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def digest(self) -> str:
        return "fake"

    def predict(self, queries: Any, references: Any, success: Any) -> Any:
        self.calls.append((queries, references, success))
        return np.full(len(queries), np.mean(success))


def test_the_teacher_predicts_all_from_the_references_it_asked_for() -> None:
    head = FakeHead()
    embeddings = np.arange(20.0).reshape(10, 2)
    estimator = TeacherEstimator(10, head, embeddings, 4)  # type: ignore[arg-type]
    for step in range(2):
        rows = estimator.probe(step, np.random.default_rng(step))
        assert rows is not None
        assert len(set(rows.tolist())) == 4
        failed = [1, 3, 5, 8]
        groups = {int(row): (8, f) for row, f in zip(rows, failed, strict=True)}
        estimator.observe(outcome(step, groups))
        assert estimator.probe(step, RNG) is None
        queries, references, success = head.calls[-1]
        assert np.array_equal(queries, embeddings)
        assert np.array_equal(references, embeddings[rows])
        assert success.tolist() == pytest.approx([1 - f / 8 for f in failed])
        for row in range(10):
            told = groups[row][1] / 8 if row in groups else sum(failed) / 32
            assert estimator.difficulty()[row] == pytest.approx(told)
    # The step's training groups refine their own prompts and nothing else.
    calls = len(head.calls)
    before = estimator.difficulty().copy()
    estimator.observe(outcome(1, {9: (8, 0)}))
    assert len(head.calls) == calls
    assert estimator.difficulty()[9] == 0
    assert np.array_equal(estimator.difficulty()[:9], before[:9])


# --- build and state ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "services", "missing"),
    [
        ("entropy", Services(), "entropy"),
        ("judge", Services(), "ask"),
        ("teacher", Services(), "embeddings"),
        ("teacher", Services(embeddings=np.zeros((3, 2))), "teacher"),
    ],
)
def test_a_missing_service_is_named(name: str, services: Services, missing: str) -> None:
    config = CurriculumConfig.from_dict({"estimator.name": name})
    with pytest.raises(InvalidInput, match=rf"Services\({missing}=") as error:
        build_estimator(config, 3, RolloutBuffer(4, 4), services)
    assert error.value.field == f"services.{missing}"
    assert repr(name) in str(error.value)


def test_every_name_builds_its_estimator() -> None:
    full = Services(
        entropy=lambda rows: Measured(np.ones(len(rows)), 0),
        ask=lambda rows: Replies([""] * len(rows), 0),
        teacher=FakeHead(),  # type: ignore[arg-type]
        embeddings=np.zeros((3, 2)),
    )
    expected = {
        "dare": LiveEstimator,
        "dare-rescored": RescoredEstimator,
        "paper": PaperEstimator,
        "previous-fr": PreviousEstimator,
        "current-fr": CurrentEstimator,
        "dynamic": DynamicEstimator,
        "greso": GresoEstimator,
        "posterior": PosteriorEstimator,
        "entropy": EntropyEstimator,
        "judge": JudgeEstimator,
        "teacher": TeacherEstimator,
        "uniform": UniformEstimator,
    }
    for name, kind in expected.items():
        config = CurriculumConfig.from_dict({"estimator.name": name, "medium.group_size": 6})
        estimator = build_estimator(config, 3, RolloutBuffer(4, 4), full)
        assert type(estimator) is kind
        assert estimator.probe_group == 6
        assert estimator.difficulty().tolist() == [0.5] * 3


def test_states_of_another_estimator_or_size_are_refused() -> None:
    posterior, uniform = PosteriorEstimator(3, 0.5), UniformEstimator(3)
    before = frozen(posterior.state_dict())
    with pytest.raises(InvalidInput, match="another estimator"):
        posterior.load_state_dict(uniform.state_dict())
    with pytest.raises(InvalidInput, match="3 rows"):
        posterior.load_state_dict(PosteriorEstimator(4, 0.5).state_dict())
    assert same(posterior.state_dict(), before)


@pytest.mark.parametrize("bad", [[0.1, 0.2], [0.1, 1.2, 0.3], [0.1, float("nan"), 0.3]])
def test_priors_that_are_no_failure_rates_are_refused(bad: list[float]) -> None:
    estimator = PaperEstimator(3, RolloutBuffer(4, 4), EstimatorConfig())
    with pytest.raises(InvalidInput, match="cold start"):
        estimator.set_prior(np.array(bad))
    assert estimator.difficulty().tolist() == [0.5] * 3
