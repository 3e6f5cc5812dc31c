"""Replay: how old a group may be, how often it comes back, and which ones come first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from worlds import batch, describe, roll, run, services, small, table, truth

from dare import Curriculum, InvalidInput
from dare.curriculum import RolloutBuffer

STEPS = 14


def followed(**replay: Any) -> tuple[Curriculum, Counter[int], list[int]]:
    """A run with three quarters replayed; how often each group came back, and how old it was."""
    settings = {f"replay.{name}": value for name, value in replay.items()}
    config = small(fresh_share=0.25, **settings)
    curriculum = Curriculum(table(60), config, services())
    prompts, times, ages = curriculum.prompts, Counter[int](), list[int]()
    for _ in range(STEPS):
        plan = curriculum.plan()
        buffer = curriculum.buffer
        sampled = dict(zip(buffer["group"].tolist(), buffer["step"].tolist(), strict=True))
        times.update(plan.replay.tolist())
        ages += [plan.step - sampled[group] for group in plan.replay.tolist()]
        assert plan.fresh_rollouts + plan.replay_rollouts == config.rollout_budget
        curriculum.observe(roll(plan, prompts, truth(prompts)))
    return curriculum, times, ages


def test_without_limits_early_groups_come_back_again_and_again() -> None:
    _, times, ages = followed()
    assert max(times.values()) > 3
    assert max(ages) > 5


@pytest.mark.parametrize("most", [1, 3])
def test_no_group_is_replayed_more_often_than_stated(most: int) -> None:
    curriculum, times, _ = followed(times=most)
    assert max(times.values()) == most
    buffer = curriculum.buffer
    for group in np.unique(buffer["group"]).tolist():
        assert set(buffer["replayed"][buffer["group"] == group]) == {times[group]}


@pytest.mark.parametrize("oldest", [1, 4])
def test_no_group_is_replayed_when_it_is_too_old(oldest: int) -> None:
    _, _, ages = followed(max_age=oldest)
    assert set(ages) == set(range(1, oldest + 1))


def test_what_is_trained_on_in_its_own_step_is_no_replay() -> None:
    config = small("current-fr", **{"estimator.max_probes": 3})
    curriculum = Curriculum(table(40), config, services())
    run(curriculum, 3, np.full(40, 0.5))
    assert not curriculum.buffer["replayed"].any()


def test_limits_hold_after_a_resume() -> None:
    config = small(fresh_share=0.25, **{"replay.times": 2, "replay.priority": 1.0})
    whole = Curriculum(table(60), config, services())
    run(whole, 6)
    again = Curriculum(table(60), config, services())
    again.load_state_dict(whole.state_dict())
    for _ in range(5):
        assert describe(again.plan()) == describe(whole.plan())
        run(again, 1)
        run(whole, 1)


def groups_of(*right: int, size: int = 8) -> RolloutBuffer:
    """A buffer of one group a step, with so many right rollouts each."""
    buffer = RolloutBuffer(size, 1000)
    for step, good in enumerate(right):
        rewards = [float(place < good) for place in range(size)]
        buffer.add(batch([step] * size, rewards), step)
    return buffer


def test_the_advantage_of_a_group_is_that_of_its_standardised_rewards() -> None:
    buffer = groups_of(1, 4, 7, 8)
    facts = buffer.group_facts([0, 1, 2, 3])
    for right, found in zip((1, 4, 7), facts["advantage"], strict=False):
        rewards = np.array([1.0] * right + [0.0] * (8 - right))
        assert found == pytest.approx(np.abs((rewards - rewards.mean()) / rewards.std()).mean())
    assert facts["advantage"][3] == 0.0
    assert facts["step"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("power", [1.0, 4.0])
def test_the_first_replay_is_drawn_in_proportion_to_the_advantage(power: float) -> None:
    config = small(fresh_share=0.25, **{"replay.priority": power})
    planner = Curriculum(table(8), config, services())._planner
    planner._buffer = groups_of(1, 4, 1, 1)
    drawn = [int(planner.replay(9, np.random.default_rng(seed))[0][0]) for seed in range(4000)]
    strong, weak = 1.0, 2 * np.sqrt(1 / 8 * 7 / 8)  # mean |A| is 2 sqrt(p (1 - p))
    wanted = strong**power / (strong**power + 3 * weak**power)
    assert drawn.count(1) / 4000 == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize(
    ("name", "value"), [("max_age", -1), ("times", -2), ("priority", -0.5), ("times", 1.5)]
)
def test_settings_that_cannot_work_are_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        small(**{f"replay.{name}": value})
    assert caught.value.field == f"replay.{name}"
