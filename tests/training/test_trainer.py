"""DareTrainer end to end: every preset, zero drift, unscored rollouts, evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

import tiny
from dare import InvalidInput
from dare.curriculum import Conditioning

PRESETS = ("dare", "paper", "grpo", "dapo", "mopps", "previous-fr", "current-fr")


class Batches:
    """Keeps what the curriculum hands over for training."""

    def __init__(self, trainer: Any) -> None:
        self.kept: list[Any] = []
        inner = trainer._micro_batches

        def watched(plan: Any, batch: Any) -> Any:
            self.kept.append((plan, batch))
            return inner(plan, batch)

        trainer._micro_batches = watched


class Gradients(TrainerCallback):
    """Largest entry of the gradient of every step."""

    def __init__(self) -> None:
        self.largest: list[float] = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_) -> None:
        found = [p.grad.abs().max().item() for p in model.parameters() if p.grad is not None]
        self.largest.append(max(found))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains_and_fills_the_budget_exactly(preset: str, tmp_path: Path) -> None:
    model = tiny.policy()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    references = {} if preset in ("dare", "paper") else {"cold_start.references": 0}
    trainer = tiny.trainer(tmp_path, model=model, preset=preset, max_steps=2, curriculum=references)
    batches = Batches(trainer)
    trainer.train()
    assert trainer.state.global_step == 2
    assert len(batches.kept) == 2
    for plan, batch in batches.kept:
        assert len(batch.rollouts) == trainer.settings.rollout_budget == 32
        assert plan.fresh_rollouts + plan.replay_rollouts == 32
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())
    lines = tiny.lines(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1]
    assert all(math.isfinite(line["loss"]) for line in lines)


@pytest.mark.parametrize("budget", [24, 33, 50])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_odd_budgets_are_filled_too(budget: int, share: float, tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path,
        max_steps=2,
        rollout_budget=budget,
        per_device_train_batch_size=budget,
        curriculum={"fresh_share": max(share, 16 / budget)},
    )
    batches = Batches(trainer)
    trainer.train()
    assert [len(batch.rollouts) for _, batch in batches.kept] == [budget, budget]


def test_a_policy_that_stands_still_has_ratios_of_1_and_an_ess_of_k(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path,
        learning_rate=0.0,
        temperature=0.6,
        max_completion_length=24,
        curriculum={**tiny.CLASSIC, "estimator.refresh_share": 1e6},
    )
    trainer.train()
    buffer = trainer.curriculum.buffer
    plain = buffer.plain & buffer.has_behaviour  # what was never trained on has no log-probs
    assert plain.sum() > 8
    rescored = buffer["scored_step"][plain] > buffer["step"][plain]
    assert rescored.all()
    ratio = buffer.log_ratio[plain]
    assert np.abs(ratio).max() < 1e-3
    weight = np.exp(ratio)
    for prompt in np.unique(buffer["prompt"][plain]):
        mine = weight[buffer["prompt"][plain] == prompt]
        assert mine.sum() ** 2 / (mine**2).sum() == pytest.approx(len(mine), abs=1e-3)
    assert tiny.lines(tmp_path / "metrics.jsonl")[-1]["objective_clipped"] >= 0.0


def test_helped_rollouts_do_not_count_for_the_estimate(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path,
        max_steps=1,
        data=tiny.problems(0.0, each=8),
        per_device_train_batch_size=32,
        curriculum={"tiers": True, "hard.above": 0.4, "fresh_share": 1.0},
    )
    batches = Batches(trainer)
    trainer.train()
    _, batch = batches.kept[0]
    helped = (batch.rollouts.conditioning_R != Conditioning.PLAIN).sum()
    assert helped == 16
    trials = trainer.curriculum.estimator.state_dict()["arrays"]["memory_trials"]
    assert trials.sum() == 32 - 16


@pytest.mark.parametrize("rate", [0.0, 1e-3])
def test_a_bfloat16_policy_trains(rate: float, tmp_path: Path) -> None:
    # Decoding and scoring round differently there: a token at the edge of the nucleus may be
    # drawn inside of it and scored outside, and must not count as impossible.
    trainer = tiny.trainer(
        tmp_path,
        model=tiny.blank().to(torch.bfloat16),
        max_steps=2,
        learning_rate=rate,
        temperature=0.6,
        max_completion_length=100,
        rollout_budget=64,
        per_device_train_batch_size=64,
        curriculum={**tiny.CLASSIC, "estimator.refresh_share": 1e6},
    )
    trainer.train()
    buffer = trainer.curriculum.buffer
    known = buffer.has_behaviour
    assert known.any()
    assert np.isfinite(buffer["behaviour"][known]).all()
    if rate == 0.0:
        assert np.abs(buffer.log_ratio[known]).max() < 0.5


# --- rollouts without a reward --------------------------------------------------------------------


def test_a_step_without_any_reward_moves_nothing(tmp_path: Path) -> None:
    gradients = Gradients()
    trainer = tiny.trainer(
        tmp_path,
        max_steps=2,
        reward=lambda completions, **_: [None] * len(completions),
        callbacks=[gradients],
        beta=0.1,
    )
    trainer.train()
    assert gradients.largest == [0.0, 0.0]
    curriculum = trainer.curriculum
    assert curriculum.coverage == 0.0
    assert len(curriculum.buffer) == 0
    assert np.all(curriculum.difficulty() == 0.5)
    for line in tiny.lines(tmp_path / "metrics.jsonl"):
        assert line["unscored"] == line["rollouts"] == 32
        assert line["loss"] == 0.0


def test_unscored_rollouts_are_counted_and_left_out(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=2, reward=tiny.patchy, rollout_budget=64)
    batches = Batches(trainer)
    trainer.train()
    for (_, batch), line in zip(batches.kept, tiny.lines(tmp_path / "metrics.jsonl"), strict=True):
        unscored = np.isnan(batch.rollouts.reward_R)
        assert 0 < line["unscored"] == unscored.sum() < 64
        assert (batch.weight_R[unscored] == 0).all()
        assert (batch.advantage_R[unscored] == 0).all()
        assert batch.weight_R.sum() == pytest.approx(1.0)
    trials = trainer.curriculum.estimator.state_dict()["arrays"]["memory_trials"]
    scored = sum(
        int((batch.rollouts.scored_R & (batch.uid_R >= 0) & batch.fresh_R).sum())
        for _, batch in batches.kept
    )
    assert trials.sum() == scored


# --- evaluation -----------------------------------------------------------------------------------


def test_evaluation_reports_accuracy_tokens_and_levels(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path,
        reward=lambda completions, chance, **_: [float(c > 0.5) for c in chance],
        eval_data=tiny.problems(0.9, 0.1, 0.2, each=3)[:7],
        eval_samples=2,
        eval_temperature=1.0,
        eval_strategy="steps",
        eval_steps=2,
        max_steps=2,
        per_device_train_batch_size=32,
    )
    trainer.train()
    (line,) = tiny.lines(tmp_path / "eval.jsonl")
    assert line["step"] == 2
    assert line["responses"] == 14
    assert line["unscored"] == 0
    assert line["accuracy"] == pytest.approx(6 / 14)
    assert {level: part["accuracy"] for level, part in line["by_level"].items()} == {
        "0.1": 0.0,
        "0.2": 0.0,
        "0.9": 1.0,
    }
    assert sorted(line["by_problem"]) == [0.0] * 4 + [1.0] * 3
    assert line["by_level"]["0.9"]["by_problem"] == [1.0] * 3
    assert len(line["problem_set"]) == 16
    assert 1 <= line["tokens"] <= 8
    assert trainer.evaluate()["eval_accuracy"] == pytest.approx(6 / 14)


def test_evaluation_changes_nothing_in_training(tmp_path: Path) -> None:
    runs = []
    for name, changes in (("with", {"eval_strategy": "steps", "eval_steps": 1}), ("without", {})):
        trainer = tiny.trainer(tmp_path / name, eval_data=tiny.problems(0.5), **changes)
        trainer.train()
        runs.append({k: v.clone() for k, v in trainer.model.state_dict().items()})
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_evaluating_without_a_data_set_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="eval_dataset"):
        tiny.trainer(tmp_path).evaluate()


# --- ways in --------------------------------------------------------------------------------------


def test_a_model_may_be_given_as_a_folder(tmp_path: Path) -> None:
    tiny.policy().save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    trainer = tiny.trainer(tmp_path / "run", model=str(tmp_path / "model"), max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1


def test_messages_work_like_strings_and_rewards_get_messages(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def reward(prompts, completions, completion_ids, answer, **_):
        seen.update(prompt=prompts[0], completion=completions[0], ids=completion_ids[0])
        return [1.0] * len(prompts)

    chats = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]}
        for row in tiny.problems(0.5, each=8)
    ]
    tiny.trainer(tmp_path, reward=reward, data=chats, max_steps=1).train()
    assert seen["prompt"][0]["role"] == "user"
    assert seen["completion"][0]["role"] == "assistant"
    text = tiny.tokenizer().decode(seen["ids"], skip_special_tokens=True)
    assert seen["completion"][0]["content"] == text


def test_a_system_prompt_is_put_before_every_prompt(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, system_prompt="add!")
    text = tiny.tokenizer().decode(trainer.store.tokens(0))
    assert text == f"s:add!\nu:{trainer.store.records[0]['prompt']}\na:"


def test_several_reward_functions_are_weighed(tmp_path: Path) -> None:
    def ones(completions, **_):
        return [1.0] * len(completions)

    def zeros(completions, **_):
        return [0.0] * len(completions)

    trainer = tiny.trainer(tmp_path, reward=[ones, zeros], reward_weights=[1.0, 3.0], max_steps=1)
    trainer.train()
    assert tiny.lines(tmp_path / "metrics.jsonl")[0]["reward"] == pytest.approx(1.0)


def test_the_seed_decides(tmp_path: Path) -> None:
    chosen = []
    for place, seed in enumerate((1, 1, 2)):
        tiny.trainer(tmp_path / str(place), seed=seed, max_steps=2).train()
        lines = tiny.lines(tmp_path / str(place) / "selections.jsonl")
        chosen.append([line["prompt"] for line in lines])
    assert chosen[0] == chosen[1] != chosen[2]


def test_the_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    rows = tiny.problems(0.95, 0.5, 0.05)
    kept = []
    for name, data in (("forwards", rows), ("backwards", rows[::-1])):
        tiny.trainer(tmp_path / name, data=data, max_steps=2).train()
        kept.append(
            [tiny.lines(tmp_path / name / file) for file in ("selections.jsonl", "samples.jsonl")]
        )
    assert kept[0] == kept[1]
