"""Several updates a generation: what they change, what they read, and when a step is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

import tiny
from dare import InvalidInput
from dare.runs import checkpoint

FAR: dict[str, Any] = {"optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0}
GRPO: dict[str, Any] = {**FAR, "preset": "grpo", "curriculum": {"cold_start.references": 0}}
TWICE: dict[str, Any] = {"num_iterations": 2}
HALVES: dict[str, Any] = {"per_device_train_batch_size": 16, "steps_per_generation": 2}
BOTH: dict[str, Any] = {**TWICE, **HALVES}


def weights(folder: Path, **changes: Any) -> torch.Tensor:
    trainer = tiny.trainer(folder, **changes)
    trainer.train()
    return torch.cat([value.detach().flatten() for value in trainer.model.parameters()])


@pytest.mark.parametrize(
    ("loss_type", "updates", "steps"),
    [
        ("grpo", {}, 1),
        ("grpo", TWICE, 2),
        ("grpo", HALVES, 2),
        ("dapo", {}, 1),
        ("dapo", BOTH, 4),
        ("dr_grpo", TWICE, 2),
        ("cispo", {}, 1),
        ("cispo", TWICE, 2),
    ],
    ids=str,
)
def test_clip_ranges_act_where_a_generation_has_several_updates(
    loss_type: str, updates: dict[str, Any], steps: int, tmp_path: Path
) -> None:
    settings = {**GRPO, **updates, "max_steps": steps, "loss_type": loss_type}
    tight, wide = (
        weights(tmp_path / name, **{**settings, "epsilon": epsilon})
        for name, epsilon in (("tight", 0.001), ("wide", 0.9))
    )
    assert torch.equal(tight, wide) == (steps == 1)


@pytest.mark.parametrize(("updates", "many"), [(TWICE, 2), (HALVES, 2), (BOTH, 4)], ids=str)
def test_a_step_is_a_generation_and_makes_its_updates(
    updates: dict[str, Any], many: int, tmp_path: Path
) -> None:
    trainer = tiny.trainer(
        tmp_path,
        max_steps=2 * many,
        eval_data=tiny.problems(0.5),
        eval_strategy="steps",
        eval_steps=1,
        **updates,
    )
    trainer.train()
    assert trainer.state.global_step == 2 * many
    assert trainer.curriculum.step == 2
    assert [line["step"] for line in tiny.lines(tmp_path / "metrics.jsonl")] == [0, 1]
    assert [line["step"] for line in tiny.lines(tmp_path / "eval.jsonl")] == [1, 2]
    logged = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == [many, 2 * many]


class Gradients(TrainerCallback):
    """The gradient of every update."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        parts = [p.grad.flatten() for p in given["model"].parameters() if p.grad is not None]
        self.found.append(torch.cat(parts).clone())


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_mini_batches_of_a_still_policy_have_the_gradient_of_the_whole_in_the_mean(
    loss_type: str, tmp_path: Path
) -> None:
    still = {**GRPO, "learning_rate": 0.0, "loss_type": loss_type}
    whole, parts = Gradients(), Gradients()
    tiny.trainer(tmp_path / "one", callbacks=[whole], **{**still, "max_steps": 1}).train()
    four = {"per_device_train_batch_size": 8, "steps_per_generation": 4, "max_steps": 4}
    tiny.trainer(tmp_path / "four", callbacks=[parts], **{**still, **four}).train()
    mean = torch.stack(parts.found).mean(0)
    assert float(mean.abs().max()) > 1e-2
    assert torch.allclose(mean, whole.found[0], atol=1e-5)
    assert not torch.allclose(parts.found[0], parts.found[1], atol=1e-3)


# --- log-probs ------------------------------------------------------------------------------------


def scored(folder: Path) -> list[dict[str, int]]:
    return [line["tokens"] for line in tiny.lines(folder / "metrics.jsonl")]


@pytest.mark.parametrize("preset", ["grpo", "mopps"])
def test_no_pass_is_made_that_an_update_makes(preset: str, tmp_path: Path) -> None:
    """Of one mini-batch the first pass knows the behaviour; of two the second must be scored."""
    base = {"preset": preset, "max_steps": 4, "curriculum": {"cold_start.references": 0}}
    tiny.trainer(tmp_path / "twice", **base, **TWICE).train()
    assert all(tokens["scored"] == 0 for tokens in scored(tmp_path / "twice"))
    tiny.trainer(tmp_path / "halves", **base, **HALVES).train()
    for tokens in scored(tmp_path / "halves"):
        assert 0 < tokens["scored"] < tokens["trained"]


@pytest.mark.parametrize("updates", [TWICE, HALVES, BOTH], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_buffer_holds_the_log_probs_of_the_policy_that_sampled(
    updates: dict[str, Any], dropout: float, tmp_path: Path
) -> None:
    """Whatever the later updates did to it."""
    model = tiny.blank(attention_dropout=dropout) if dropout else None
    sampling = {"temperature": 0.7, "top_p": 0.9}
    trainer = tiny.trainer(
        tmp_path,
        model=model,
        data=tiny.problems(0.5, each=12),
        max_steps=8,
        learning_rate=1e-2,
        **sampling,
        **updates,
    )
    wanted: dict[int, float] = {}
    make = trainer._micro_batches

    def before(plan: Any, batch: Any) -> Any:
        fresh = np.flatnonzero(batch.fresh_R & batch.rollouts.plain_R & (batch.uid_R >= 0))
        scores = trainer.policy.score(
            [trainer.store.tokens(int(row)) for row in batch.rollouts.prompt_R[fresh]],
            [batch.rollouts.response(int(row)) for row in fresh],
            trainer.args.sampling,
            drawn=True,
        )
        wanted.update(zip(batch.uid_R[fresh].tolist(), scores.total.tolist(), strict=True))
        return make(plan, batch)

    trainer._micro_batches = before
    trainer.train()
    buffer = trainer.curriculum.buffer
    known = np.flatnonzero(buffer.has_behaviour & np.isin(buffer["uid"], list(wanted)))
    assert len(known) > 16
    for place in known:
        found = float(buffer["behaviour"][place])
        assert found == pytest.approx(wanted[int(buffer["uid"][place])], abs=1e-3)


@pytest.mark.parametrize("updates", [TWICE, HALVES, BOTH], ids=str)
def test_replayed_rollouts_are_scored_by_the_updates(
    updates: dict[str, Any], tmp_path: Path
) -> None:
    trainer = tiny.trainer(
        tmp_path,
        max_steps=16,
        learning_rate=1e-3,
        curriculum={"fresh_share": 0.5, "estimator.refresh_share": 0.0},
        **updates,
    )
    trainer.train()
    buffer = trainer.curriculum.buffer
    again = buffer["scored_step"] > buffer["step"]
    assert set(np.unique(buffer["group"][buffer["replayed"] > 0])) == set(buffer["group"][again])
    assert not np.allclose(buffer["current"][again], buffer["behaviour"][again])


# --- whole steps ----------------------------------------------------------------------------------


def test_checkpoints_fall_on_whole_steps(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path, max_steps=8, save_strategy="steps", save_steps=3, save_total_limit=None, **TWICE
    )
    trainer.train()
    names = [path.name for path in reversed(checkpoint.checkpoints(tmp_path))]
    assert names == ["checkpoint-4", "checkpoint-6", "checkpoint-8"]


class StopAt(TrainerCallback):
    """Asks for an end, once, after so many updates."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.update:
            control.should_training_stop = True


def test_a_run_ends_with_a_whole_step(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=8, **TWICE)
    trainer.add_callback(StopAt(3))
    trainer.train()
    assert trainer.state.global_step == 4
    assert len(tiny.lines(tmp_path / "metrics.jsonl")) == 2


def test_other_updates_than_those_of_the_checkpoint_are_refused(tmp_path: Path) -> None:
    saves = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    tiny.trainer(tmp_path, **saves, **TWICE).train()
    with pytest.raises(InvalidInput, match="saved with 2 updates"):
        tiny.trainer(tmp_path, **saves).train(resume_from_checkpoint=True)


# --- settings -------------------------------------------------------------------------------------


def test_steps_per_generation_count_micro_batches_as_in_trl(tmp_path: Path) -> None:
    eight = {"per_device_train_batch_size": 4, "steps_per_generation": 8, "max_steps": 8}
    made = tiny.trainer(tmp_path, gradient_accumulation_steps=2, **eight)
    assert made.args.mini_batches == made.args.updates_per_generation == 4
    assert made.args.gradient_accumulation_steps == 2
    assert tiny.trainer(tmp_path, gradient_accumulation_steps=8, **eight).args.mini_batches == 1
    with pytest.raises(InvalidInput, match="8 micro-batches; set that, or rollout_budget to 16"):
        tiny.trainer(tmp_path, per_device_train_batch_size=4, steps_per_generation=4, max_steps=8)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("num_iterations", {"num_iterations": 0}),
        ("steps_per_generation", {"steps_per_generation": 3, "gradient_accumulation_steps": 2}),
        ("max_steps", {"max_steps": 5, "num_iterations": 2}),
        ("loss_type", {"loss_type": "ppo"}),
        ("importance_sampling_level", {"importance_sampling_level": "prompt"}),
        ("epsilon_high", {"loss_type": "cispo", "epsilon_high": 0.28}),
    ],
)
def test_settings_that_cannot_work_are_named(
    field: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as caught:
        tiny.config(tmp_path, **changes)
    assert caught.value.field == field


def test_the_upper_bound_of_cispo_is_trls(tmp_path: Path) -> None:
    settings = tiny.config(tmp_path, loss_type="cispo", epsilon_high=5.0).curriculum_config()
    assert 1.0 + settings.medium.clip_high == 5.0
    settings = tiny.config(tmp_path, epsilon=0.1, epsilon_high=0.3).curriculum_config()
    assert (settings.medium.clip_low, settings.medium.clip_high) == (0.1, 0.3)
