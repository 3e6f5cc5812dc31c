"""Save, load and go on: the next plans are the same, and a wrong state is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from worlds import describe, frozen, roll, run, same, services, small, table, truth

from dare import Curriculum, CurriculumConfig, InvalidInput, PromptTable
from dare.curriculum import Services
from dare.curriculum.estimators import Measured, Replies


class FakeHead:
    def digest(self) -> str:
        return "fake"

    def predict(self, queries: Any, references: Any, success: Any) -> Any:
        pull = np.tanh(np.asarray(queries) @ np.asarray(references).T).mean(axis=1)
        return np.clip(np.mean(success) + 0.3 * pull, 0, 1)


def full_services(count: int) -> Services:
    values = np.random.default_rng(8).random(count)
    return Services(
        entropy=lambda rows: Measured(values[rows], len(rows)),
        ask=lambda rows: Replies([f"{v:.2f}" for v in values[rows]], len(rows)),
        decode=services().decode,
        teacher=FakeHead(),  # type: ignore[arg-type]
        embeddings=services(count).embeddings,
        states=services(count).states,
    )


def make(config: CurriculumConfig, count: int = 90) -> Curriculum:
    return Curriculum(table(count), config, full_services(count))


def through_disk(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """As a checkpoint does it: safetensors and JSON."""
    arrays = {name: np.ascontiguousarray(array) for name, array in state["arrays"].items()}
    save_file(arrays, folder / "curriculum.safetensors")
    (folder / "curriculum.json").write_text(json.dumps(state["meta"], allow_nan=False))
    return {
        "arrays": load_file(folder / "curriculum.safetensors"),
        "meta": json.loads((folder / "curriculum.json").read_text()),
    }


CONFIGS = {
    "dare": small("dare"),
    "dare, sigma 0.5": small("dare", fresh_share=0.5),
    "classic": small("classic"),
    "classic, sigma 1": small("classic", fresh_share=1.0),
    "paper": small("paper"),
    "paper, sigma 0.5": small("paper", fresh_share=0.5, **{"selection.eta": 0.5}),
    "paper, B of 6": small("paper", prompts_per_step=6),
    "paper-release": small("paper-release"),
    "grpo": small("grpo"),
    "dapo": small("dapo"),
    "greso": small("greso"),
    "mopps": small("mopps"),
    "previous-fr": small("previous-fr"),
    "current-fr": small("current-fr"),
    "dots": small("dots", **{"estimator.references": 8}),
    "edco": small("edco"),
    "llm-judge": small("llm-judge", **{"estimator.candidates": 20}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_next_ten_plans_are_the_same_after_a_resume(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    curriculum = make(config)
    run(curriculum, 4)
    saved = curriculum.state_dict()
    restored = make(config)
    restored.load_state_dict(through_disk(saved, tmp_path))
    assert same(restored.state_dict()["arrays"], curriculum.state_dict()["arrays"])
    assert restored.metrics() == curriculum.metrics()
    assert run(restored, 10) == run(curriculum, 10)
    after, other = restored.state_dict(), curriculum.state_dict()
    assert same(after["arrays"], other["arrays"])
    after["meta"]["buffer"].pop("block", None)
    other["meta"]["buffer"].pop("block", None)
    assert same(after["meta"], other["meta"])


@pytest.mark.parametrize("name", ["dare", "classic", "dots", "current-fr", "greso"])
def test_a_save_in_the_middle_of_a_step_resumes_there(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    curriculum = make(config)
    fail = truth(curriculum.prompts)
    for _ in range(12):  # probes and steps alike
        plan = curriculum.plan()
        restored = make(config)
        restored.load_state_dict(through_disk(curriculum.state_dict(), tmp_path))
        assert describe(restored.plan()) == describe(plan)
        rollouts = roll(plan, curriculum.prompts, fail)
        restored.observe(rollouts)
        curriculum.observe(rollouts)
        assert describe(restored.plan()) == describe(curriculum.plan())


def test_a_saved_state_does_not_change_while_training_goes_on() -> None:
    curriculum = make(CONFIGS["dare"])
    run(curriculum, 3)
    saved = curriculum.state_dict()
    copied = frozen(saved)
    run(curriculum, 3)
    assert same(saved, copied)
    # And loading it does not tie it to the curriculum that took it.
    other = make(CONFIGS["dare"])
    other.load_state_dict(saved)
    run(other, 2)
    assert same(saved, copied)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 3}, "seed"),
        ({"rollout_budget": 96}, "rollout_budget"),
        ({"selection.sharpness": 7}, "selection.sharpness"),
        ({"buffer.rollouts_per_prompt": 12}, "buffer.rollouts_per_prompt"),
        ({"estimator.name": "uniform"}, "estimator.name"),
        ({"group_sizes": "value"}, "group_sizes"),
    ],
)
def test_other_settings_are_refused_by_name(change: dict[str, Any], field: str) -> None:
    curriculum = make(CONFIGS["dare"])
    run(curriculum, 2)
    other = make(CONFIGS["dare"].replace(change))
    run(other, 1)
    before = frozen(other.state_dict())
    plan = describe(other.plan())
    with pytest.raises(InvalidInput, match="saved with") as error:
        other.load_state_dict(curriculum.state_dict())
    assert error.value.field == field
    then = CONFIGS["dare"].to_dict()
    for part in field.split("."):
        then = then[part]
    assert repr(then) in str(error.value)
    assert same(other.state_dict(), before)
    assert describe(other.plan()) == plan


def test_other_prompts_are_refused_unless_asked_for() -> None:
    curriculum = make(CONFIGS["dare"])
    run(curriculum, 2)
    other = make(CONFIGS["dare"], 91)
    before = frozen(other.state_dict())
    with pytest.raises(InvalidInput, match="new_data=True") as error:
        other.load_state_dict(curriculum.state_dict())
    assert error.value.field == "prompts"
    assert same(other.state_dict(), before)


@pytest.mark.parametrize(
    "name", ["dare", "classic", "paper", "mopps", "previous-fr", "current-fr", "greso", "edco"]
)
def test_new_data_keeps_what_is_known_by_id(name: str) -> None:
    config = CONFIGS[name]
    old = Curriculum(table(60), config, full_services(60))
    run(old, 6)
    # 20 prompts leave, 25 come.
    texts = [f"question {i}" for i in range(20, 85)]
    answers = [f"gold-{i}" for i in range(20, 85)]
    prompts = PromptTable.from_columns(texts, answers=answers)
    new = Curriculum(prompts, config, full_services(65))
    new.load_state_dict(old.state_dict(), new_data=True)
    assert new.step == old.step
    known = {name: row for row, name in enumerate(old.prompts.ids())}
    kept = 0
    for row, ident in enumerate(prompts.ids()):
        if ident in known:
            kept += 1
            assert new.difficulty()[row] == old.difficulty()[known[ident]]
            assert new.visits_P[row] == old.visits_P[known[ident]]
            assert new.last_step_P[row] == old.last_step_P[known[ident]]
        else:
            assert new.visits_P[row] == 0
            assert new.last_step_P[row] == -1
    assert kept == 40

    def ledger(curriculum: Curriculum, wanted: set[str]) -> list[tuple[Any, ...]]:
        buffer = curriculum.buffer
        rollouts = buffer.batch(np.arange(len(buffer)))
        found = []
        for i, ident in enumerate(curriculum.prompts.ids(rollouts.prompt_R)):
            if ident in wanted:
                part = slice(rollouts.offsets[i], rollouts.offsets[i + 1])
                tokens = tuple(rollouts.tokens[part].tolist())
                found.append((int(buffer["uid"][i]), ident, tokens, float(rollouts.reward_R[i])))
        return found

    shared = set(prompts.ids()) & set(known)
    assert ledger(new, set(prompts.ids())) == ledger(old, shared)
    assert len(ledger(new, shared)) > 0
    run(new, 3)  # and it goes on


def test_data_without_a_single_old_prompt_starts_unseen_and_goes_on() -> None:
    old = Curriculum(table(30), CONFIGS["dare"], services())
    run(old, 3)
    fresh = PromptTable.from_columns([f"other {i}" for i in range(30)])
    new = Curriculum(fresh, CONFIGS["dare"], services())
    new.load_state_dict(old.state_dict(), new_data=True)
    assert len(new.buffer) == 0
    assert new.coverage == 0
    new.record_scores(np.array([0, 1]), np.array([-1.0, -1.0]))
    run(new, 2)


@pytest.mark.parametrize("break_it", ["array", "length", "format", "missing"])
def test_a_broken_state_is_refused_and_changes_nothing(break_it: str) -> None:
    curriculum = make(CONFIGS["dare"])
    run(curriculum, 3)
    broken = frozen(curriculum.state_dict())
    if break_it == "array":
        broken["arrays"]["buffer/reward"] = broken["arrays"]["buffer/reward"][:-1]
    elif break_it == "length":
        broken["arrays"]["estimator/difficulty"] = np.zeros(3)
    elif break_it == "format":
        broken["meta"]["format"] = 999
    else:
        del broken["arrays"]["estimator/difficulty"]
    other = make(CONFIGS["dare"])
    run(other, 1)
    before = frozen(other.state_dict())
    plan = describe(other.plan())
    with pytest.raises(InvalidInput):
        other.load_state_dict(broken)
    after = other.state_dict()
    assert same(after["arrays"], before["arrays"])
    assert after["meta"]["step"] == before["meta"]["step"]
    assert describe(other.plan()) == plan
    assert run(other, 2) == run(twin_after_one_step(), 2)


def twin_after_one_step() -> Curriculum:
    twin = make(CONFIGS["dare"])
    run(twin, 1)
    return twin
