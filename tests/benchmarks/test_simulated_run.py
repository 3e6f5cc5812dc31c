"""Properties of the loop that couples a curriculum with a simulated learner."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
from simulated import SimulatedLearner, intrinsic_error, simulate

from dare.config import CurriculumConfig
from dare.curriculum import Curriculum

SMALL: dict[str, Any] = {"rollout_budget": 64, "cold_start.references": 16}


def test_two_runs_are_identical_and_learning_raises_accuracy() -> None:
    config = CurriculumConfig.preset("dare", fresh_share=0.75, **SMALL)
    one, two = (simulate(config, SimulatedLearner(400), 60, every=20) for _ in range(2))
    for name in one.keys() - {"seconds"}:
        np.testing.assert_array_equal(one[name], two[name])
    assert one["accuracy"][-1] > one["accuracy"][0] + 0.01
    assert one["step"].tolist() == [0, 20, 40, 60]


def test_runs_stop_at_equal_rollouts() -> None:
    for preset in ("grpo", "dare", "mopps"):
        config = CurriculumConfig.preset(preset, **SMALL)
        run = simulate(config, SimulatedLearner(400), 10**6, rollouts=2048)
        assert 2048 <= run["generated"][-1] < 2048 + 64


def test_estimates_converge_when_the_policy_stands_still() -> None:
    # 128 rollouts a prompt in all: averaged, their error is 0.25 of that of 8. What is learnt of a
    # movement that is not there (lean, drift, forgetting) may cost a fifth of that.
    changes = {"buffer.rollouts_per_prompt": 256, "tiers": False}
    config = CurriculumConfig.preset("dare", rollout_budget=512, **changes)
    shares = []
    for seed in range(2):
        learner = SimulatedLearner(100, rate=0.0, length_rate=0.0, drift=0.0, seed=seed)
        run = simulate(config, learner, 100, every=50)
        assert run["mae_all"][-1] < run["mae_all"][1]
        assert run["accuracy"][-1] == run["accuracy"][0]
        shares.append(run["mae_all"][-1] / run["intrinsic_all"][-1])
    assert np.mean(shares) < 0.3


def test_intrinsic_error_is_that_of_fresh_rollouts() -> None:
    rate = np.array([0.0, 0.1, 0.5, 1.0])
    draws = np.random.default_rng(0).binomial(8, rate, (200_000, 4)) / 8
    np.testing.assert_allclose(intrinsic_error(rate), np.abs(draws - rate).mean(axis=0), atol=2e-3)


def test_memory_is_a_few_bytes_a_prompt_and_the_loop_adds_none() -> None:
    tracemalloc.start()
    learner = SimulatedLearner(1_000_000)
    held, _ = tracemalloc.get_traced_memory()
    assert held < 12e6
    config = CurriculumConfig.preset("grpo", **{"buffer.groups": 32})
    curriculum = Curriculum(learner.table(), config, learner.services(embeddings=False))
    sizes = []
    for step in range(12):
        batch = curriculum.observe(learner.generate(curriculum.plan(), step))
        assert batch is not None
        learner.learn(batch)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[-1] < sizes[3] + 1e6
