"""A saved curriculum is complete or absent, and continues where it stopped."""

import json

import numpy as np
import pytest

from dare import Curriculum, CurriculumConfig, InvalidInput, PromptTable, RolloutBatch
from dare.state import load_state, save_state


def curriculum() -> Curriculum:
    table = PromptTable.from_columns([f"prompt {i}" for i in range(60)])
    config = CurriculumConfig.preset(
        "dare", rollout_budget=64, **{"cold_start.references": 4, "fresh_share": 0.5}
    )
    return Curriculum(table, config)


def advance(one: Curriculum, steps: int) -> list[list[str]]:
    """Steps with rewards that depend on nothing but the rollouts asked for; returns the plans."""
    plans = []
    while one.step < steps:
        plan = one.plan()
        plans.append(plan.ids)
        rows = plan.rows()["prompt"]
        reward = ((rows * 7 + np.arange(len(rows))) % 3 > 0).astype(float).tolist()
        count = len(rows)
        tokens, logprobs = [[1, 2]] * count, [[-0.5, -0.25]] * count
        one.observe(RolloutBatch.from_lists(rows, tokens, logprobs, reward))
        one.refresh(lambda request: request.rollouts.total_logprob_R - 0.1, 100)
    return plans


def test_the_next_ten_plans_after_a_load_are_the_same(tmp_path):
    one = curriculum()
    advance(one, 6)
    save_state(one.state_dict(), tmp_path / "state")
    other = curriculum()
    other.load_state_dict(load_state(tmp_path / "state"))
    assert advance(other, 16) == advance(one, 16)
    np.testing.assert_array_equal(one.difficulty(), other.difficulty())


def test_only_safetensors_and_json_are_written(tmp_path):
    one = curriculum()
    advance(one, 2)
    save_state(one.state_dict(), tmp_path / "state")
    names = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert names == ["curriculum.json", "curriculum.safetensors"]
    json.loads((tmp_path / "state" / "curriculum.json").read_text("utf-8"))


def test_a_save_that_fails_leaves_nothing(tmp_path):
    state = curriculum().state_dict()
    state["meta"]["bad"] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        save_state(state, tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(tmp_path):
    (tmp_path / "state").mkdir()
    with pytest.raises(InvalidInput, match="exists already"):
        save_state(curriculum().state_dict(), tmp_path / "state")


def test_a_folder_without_a_state_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="safetensors"):
        load_state(tmp_path)
