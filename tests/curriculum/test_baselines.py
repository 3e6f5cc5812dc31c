"""The baselines' estimates against calculations that share nothing with the package (METHOD 9)."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from worlds import examples, table

from dare.config import CurriculumConfig, SelectionConfig
from dare.curriculum import Curriculum, Services
from dare.curriculum.estimators import (
    JudgeEstimator,
    Measured,
    Outcome,
    PosteriorEstimator,
    Replies,
    TeacherEstimator,
    parse_probability,
)
from dare.curriculum.selection import Selector
from dare.teacher.head import TeacherHead

GROUP = 8
VISITS = st.lists(st.integers(0, GROUP), min_size=1, max_size=12)


def visited(failures: list[int], keep: float, prompts: int = 1) -> PosteriorEstimator:
    """A posterior whose first prompt had groups with these failures."""
    estimator = PosteriorEstimator(prompts, keep)
    for step, failed in enumerate(failures):
        found = Outcome(step, np.array([0]), np.array([float(GROUP)]), np.array([float(failed)]))
        estimator.observe(found)
    return estimator


# --- MoPPS: Bayes' rule on a density that forgets, by numerical integration -----------------------


def log_density(failures: list[int], keep: float, rate: Any) -> Any:
    """Unnormalised: at each visit what was known loses weight (a power of the density, with the
    uniform one taking its place), then the group's binomial likelihood is multiplied in."""
    value = np.zeros_like(rate)
    for failed in failures:
        value = keep * value + stats.binom.logpmf(failed, GROUP, rate)
    return value


def cdf(failures: list[int], keep: float) -> Any:
    """Distribution function of the failure rate, and its mean, on a fine grid."""
    grid = np.linspace(0, 1, 20_001)
    middle = (grid[1:] + grid[:-1]) / 2
    log = log_density(failures, keep, middle)
    mass = np.exp(log - log.max())
    mass /= mass.sum()
    below = np.concatenate([[0.0], np.cumsum(mass)])
    return (lambda x: np.interp(x, grid, below)), float(mass @ middle)


@given(VISITS, st.floats(0, 1))
@examples(40)
def test_the_posterior_mean_is_that_of_the_integrated_density(
    failures: list[int], keep: float
) -> None:
    found = visited(failures, keep).difficulty()[0]
    assert found == pytest.approx(cdf(failures, keep)[1], abs=1e-5)


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("failures", [[6, 7], [0, 0, 0], [8], [3, 8, 1, 4]])
def test_thompson_draws_follow_the_integrated_density(failures: list[int], keep: float) -> None:
    estimator, rng = visited(failures, keep, prompts=3), np.random.default_rng(5)
    drawn = np.array([estimator.sample(rng) for _ in range(2000)])
    assert stats.kstest(drawn[:, 0], cdf(failures, keep)[0]).pvalue > 1e-3
    for unseen in (1, 2):
        assert stats.kstest(drawn[:, unseen], stats.uniform.cdf).pvalue > 1e-3


def test_the_nearest_draw_to_the_target_wins_as_often_as_the_integral_says() -> None:
    keep, target = 0.5, 0.5
    histories: list[list[int]] = [[2, 3], [7, 5, 6]]
    estimator = PosteriorEstimator(2, keep)
    for row, history in enumerate(histories):
        for step, failed in enumerate(history):
            group = np.array([float(GROUP)]), np.array([float(failed)])
            estimator.observe(Outcome(step, np.array([row]), *group))

    first, second = (cdf(history, keep)[0] for history in histories)
    grid = np.linspace(0, 1, 20_001)
    middle = (grid[1:] + grid[:-1]) / 2
    # The first prompt wins where the second one's draw is farther from the target.
    nearer = second(np.maximum(middle, 1 - middle)) - second(np.minimum(middle, 1 - middle))
    chance = float(np.diff(first(grid)) @ (1 - nearer))
    assert 0.2 < chance < 0.95
    selector = Selector(SelectionConfig(name="thompson", target=target, explore="off"), 8)
    rng = np.random.default_rng(7)
    wins = 0
    for _ in range(4000):
        sample = estimator.sample(rng)
        row = selector.draw(sample, np.ones(2, int), np.ones(2, bool), 1, rng, sample)[0]
        wins += int(row == 0)
    assert stats.binomtest(wins, 4000, chance).pvalue > 1e-3


# --- EDCO: the softmax of the entropy, through the whole curriculum -------------------------------


@pytest.mark.parametrize("tau", [0.25, 1.0, 4.0])
def test_the_first_prompt_is_drawn_by_the_softmax_of_the_entropy(tau: float) -> None:
    entropy = np.array([0.1, 0.4, 0.9, 1.3, 0.7])
    chance = np.array([math.exp(value / tau) for value in entropy.tolist()])
    chance /= chance.sum()
    services = Services(entropy=lambda rows: Measured(entropy[rows], 64 * len(rows)))
    prompts = table(5)
    counts = np.zeros(5, int)
    config = CurriculumConfig.preset("edco", **{"selection.temperature": tau})
    for seed in range(800):
        curriculum = Curriculum(prompts, dataclasses.replace(config, seed=seed), services)
        assert curriculum.refresh() == 320
        counts[curriculum.plan().prompt_P[0]] += 1
    assert stats.chisquare(counts, chance * counts.sum()).pvalue > 1e-3


# --- LLM-judge: every substring that Python itself reads as a number ------------------------------


def plain_parse(text: str) -> float | None:
    """The longest readable number at each place from the left; no pattern, only `float`.

    It must stand alone: no letter, digit or underscore, no further decimal point next to it, no
    percent sign after it, no minus before it.
    """

    def wordy(char: str) -> bool:
        return char.isalnum() or char == "_"

    place = 0
    while place < len(text):
        before = text[place - 1] if place else " "
        if wordy(before) or before == "." or not (text[place].isdecimal() or text[place] == "."):
            place += 1
            continue
        for end in range(len(text), place, -1):
            piece = text[place:end]
            if not all(char.isdecimal() or char in ".eE+-" for char in piece):
                continue
            after = text[end : end + 2]
            joined = after[:1] and (wordy(after[0]) or after[0] == "%")
            if joined or (after[:1] == "." and after[1:].isdecimal()):
                continue
            try:
                value = float(piece)
            except ValueError:
                continue
            if 0 <= value <= 1 and before not in "-\u2212":
                return value
            place = end - 1
            break
        place += 1
    return None


PLAIN = "0.7 .5 1 0 1. 10 1.5 -0.2 1e-3 5E-2 2e-400 1e9 85% 0.5% 1_0 v0.5 0.5x 1.0.3 0.2-0.4"
FOREIGN = "\u22120.3 \u00bd \uff10.\uff15 \u0660.\u0662 \u00b2"  # a minus sign, other digits
NUMBERS = [*PLAIN.split(), *FOREIGN.split()]
WORDS = [*"().,%-+eEx_ \n\u2212\u2013", "p=", " is ", "**", "0.5 %"]
REPLIES = st.lists(
    st.one_of(
        st.sampled_from(NUMBERS),
        st.sampled_from(WORDS),
        st.floats(-2, 2).map(str),
        st.floats(0, 1).map(lambda value: f"{value:.2e}"),
        st.integers(-9, 120).map(str),
        st.text(max_size=3),
    ),
    max_size=8,
).map("".join)


def test_replies_are_read_as_an_independent_parser_reads_them() -> None:
    """Some by hand, and thousands of the same parts as `REPLIES` has, put together at random."""
    by_hand = ["\u22120.2", "1.Then", "5.e-1", "-0.2 or 0.6"]
    draw = random.Random(0)
    parts: list[Callable[[], str]] = [
        lambda: draw.choice(NUMBERS),
        lambda: draw.choice(WORDS),
        lambda: str(draw.uniform(-2, 2)),
        lambda: f"{draw.random():.2e}",
        lambda: str(draw.randint(-9, 120)),
        lambda: "".join(chr(draw.randrange(1, 0x3000)) for _ in range(draw.randint(0, 3))),
    ]
    made = ["".join(draw.choice(parts)() for _ in range(draw.randint(0, 8))) for _ in range(3000)]
    read = [plain_parse(reply) for reply in made]
    assert 500 < sum(value is not None for value in read) < 2500
    for reply in (*by_hand, *made):
        assert parse_probability(reply) == plain_parse(reply), repr(reply)


@given(st.lists(REPLIES, min_size=1, max_size=6))
@examples(60)
def test_a_reply_is_a_chance_of_success_and_silence_is_a_coin(replies: list[str]) -> None:
    def ask(rows: Any) -> Replies:
        return Replies([replies[row] for row in rows], 7)

    estimator = JudgeEstimator(len(replies), ask)
    assert estimator.refresh(0, np.random.default_rng(0)) == 7
    read = [plain_parse(reply) for reply in replies]
    expected = [0.5 if value is None else 1 - value for value in read]
    assert estimator.difficulty().tolist() == pytest.approx(expected)
    assert estimator.metrics()["judge_unparsed"] == pytest.approx(read.count(None) / len(read))


# --- DOTS: the head with lists and `math` alone, through the estimator ----------------------------


def layer_norm(x: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    spread = math.sqrt(sum((value - mean) ** 2 for value in x) / len(x) + 1e-5)
    return [(value - mean) / spread for value in x]


def gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def affine(x: list[float], weight: Any, shift: Any) -> list[float]:
    columns = range(len(shift))
    return [sum(x[i] * weight[i][j] for i in range(len(x))) + shift[j] for j in columns]


def tower(x: list[float], params: dict[str, Any], name: str) -> list[float]:
    part = {key.partition(".")[2]: value for key, value in params.items() if key.startswith(name)}
    x = [
        g * v + s for g, v, s in zip(part["in_gain"], layer_norm(x), part["in_shift"], strict=True)
    ]
    x = [gelu(value) for value in affine(x, part["w1"], part["b1"])]
    x = [gelu(value) for value in affine(x, part["w2"], part["b2"])]
    x = layer_norm(affine(x, part["w3"], part["b3"]))
    return [g * v + s for g, v, s in zip(part["out_gain"], x, part["out_shift"], strict=True)]


def predicted_success(
    head: TeacherHead, query: list[float], references: list[list[float]], success: list[float]
) -> float:
    params = {name: value.tolist() for name, value in head.arrays().items()}
    q = tower(query, params, "query.")
    keys = [tower(row, params, "reference.") for row in references]
    scale = math.sqrt(len(q)) * head.tau
    score = [math.exp(sum(a * b for a, b in zip(q, key, strict=True)) / scale) for key in keys]
    base = sum(s * y for s, y in zip(score, success, strict=True)) / sum(score)
    base = min(max(base, 1e-4), 1 - 1e-4)
    mean = sum(success) / len(success)
    spread = math.sqrt(sum((value - mean) ** 2 for value in success) / len(success))
    inner = affine([mean, spread], params["calibrator.w1"], params["calibrator.b1"])
    inner = [max(value, 0.0) for value in inner]
    raw = affine(inner, params["calibrator.w2"], params["calibrator.b2"])
    temperature = min(max(math.log1p(math.exp(raw[0])), 1e-2), 10.0)
    logit = math.log(base / (1 - base)) / temperature + math.tanh(raw[1])
    return 1 / (1 + math.exp(-logit))


@pytest.mark.parametrize(("seed", "tau"), [(0, 1.0), (1, 0.5), (2, 2.0)])
def test_the_teacher_says_what_lists_and_math_say(seed: int, tau: float) -> None:
    rng = np.random.default_rng(seed)
    head = TeacherHead.init(6, 5, seed=seed, tau=tau, dtype="float64")
    moved = {k: v + 0.4 * rng.normal(size=v.shape) for k, v in head.arrays().items()}
    head = TeacherHead.of(moved, tau)  # off its symmetric start, where every part speaks
    embeddings = rng.normal(size=(12, 6)).astype(np.float32)
    estimator = TeacherEstimator(12, head, embeddings, 4)
    for step in range(2):
        rows = estimator.probe(step, rng)
        assert rows is not None
        failed = rng.integers(0, GROUP + 1, len(rows)).astype(float)
        estimator.observe(Outcome(step, rows, np.full(len(rows), float(GROUP)), failed))
        success = [1 - value / GROUP for value in failed.tolist()]
        near = embeddings[rows].tolist()
        for row in range(12):
            if row in rows:
                expected = failed[rows.tolist().index(row)] / GROUP
            else:
                query = embeddings[row].tolist()
                expected = 1 - predicted_success(head, query, near, success)
            assert estimator.difficulty()[row] == pytest.approx(expected, abs=1e-9)
        assert np.ptp(np.delete(estimator.difficulty(), rows)) > 1e-3


def test_the_tanh_form_of_gelu_is_within_its_known_distance_of_the_exact_one() -> None:
    grid = np.linspace(-6, 6, 2001)
    exact = [0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in grid.tolist()]
    assert max(abs(gelu(x) - y) for x, y in zip(grid.tolist(), exact, strict=True)) < 5e-4
