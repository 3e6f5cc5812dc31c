"""No pass twice: what the update computes of its rollouts is what a scoring pass would find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from dare import InvalidInput
from dare.policy import policy as policies
from dare.policy.policy import Policy
from dare.runs import checkpoint
from dare.training import objective
from dare.training.update import micro_batches, token_weights, trained_rows
from dare_decoder import Sampling

PROMPTS = [tiny.encode(f"{place}+1=") for place in range(6)]
RESPONSES = [np.array([5, 6, 7, 1])] * 6
READINGS: dict[str, Callable[[Policy], Any]] = {
    "score": lambda policy: policy.score(PROMPTS, RESPONSES, Sampling(1.0, 1.0)).total,
    "embed_prompts": lambda policy: policy.embed(PROMPTS),
    "prompt_states": lambda policy: policy.states(PROMPTS),
    "mean_entropy": lambda policy: policy.entropy(PROMPTS, RESPONSES, 1.0),
}
SAMPLING = {"temperature": 0.7, "top_p": 0.9}


def scored_again(trainer: Any, rows: np.ndarray) -> np.ndarray:
    buffer = trainer.curriculum.buffer
    batch = buffer.batch(rows)
    prompts = [trainer.store.tokens(int(row)) for row in batch.prompt_R]
    responses = [batch.response(row) for row in range(len(batch))]
    return trainer.policy.score(prompts, responses, Sampling(0.7, 0.9), drawn=True)


@pytest.mark.parametrize("bf16", [False, True])
def test_behaviour_log_probs_are_those_of_a_scoring_pass(bf16: bool, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=2, learning_rate=0.0, bf16=bf16, **SAMPLING)
    trainer.train()
    buffer = trainer.curriculum.buffer
    known = np.flatnonzero(buffer.has_behaviour)
    assert len(known) > 8
    found = scored_again(trainer, known)
    apart = 0.1 if bf16 else 1e-4
    assert np.abs(buffer["behaviour"][known] - found.total).max() < apart
    assert np.abs(buffer.batch(known).logprobs - found.logprobs).max() < apart
    assert all(line["tokens"]["scored"] == 0 for line in tiny.lines(tmp_path / "metrics.jsonl"))


def test_groups_that_teach_nothing_are_not_read(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=1, learning_rate=0.0, **SAMPLING)
    trainer.train()
    buffer = trainer.curriculum.buffer
    for group in np.unique(buffer["group"]):
        mine = buffer["group"] == group
        varied = len(np.unique(buffer["reward"][mine])) > 1
        has = buffer.has_behaviour[mine]
        assert has.all() if varied else not has.any()


def test_the_papers_estimator_has_the_log_probs_of_all(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path, max_steps=2, preset="paper", curriculum={"cold_start.references": 4}, **SAMPLING
    )
    trainer.train()
    buffer = trainer.curriculum.buffer
    assert buffer.has_behaviour[buffer.plain].all()
    assert sum(line["tokens"]["scored"] for line in tiny.lines(tmp_path / "metrics.jsonl")) > 0


def test_replayed_rollouts_are_scored_by_training_on_them(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path,
        max_steps=4,
        learning_rate=1e-2,
        curriculum={"fresh_share": 0.5, "estimator.refresh_share": 0.0},
        **SAMPLING,
    )
    trainer.train()
    buffer = trainer.curriculum.buffer
    again = buffer["scored_step"] > buffer["step"]
    assert again.any(), "something was replayed"
    assert not np.allclose(buffer["current"][again], buffer["behaviour"][again])


def test_micro_batches_hold_each_trained_row_once(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=1)
    kept: list[Any] = []
    make = trainer._micro_batches

    def watched(plan: Any, batch: Any) -> Any:
        kept.append((trainer._updates.prompts(plan, batch), batch))
        return make(plan, batch)

    trainer._micro_batches = watched
    trainer.train()
    prompts, batch = kept[0]
    weight = token_weights(batch, "grpo", 8)
    rows = trained_rows(batch, weight, 0.0)
    for few in (rows, rows[:3], rows[:0]):
        made = micro_batches(
            batch, prompts, few, trainer.policy, weight, count=8, rank=0, processes=1
        )
        assert 1 <= len(made) <= 8
        assert sorted(np.concatenate([part["rows"] for part in made]).tolist()) == few.tolist()
    assert len(made) == 1
    assert float(made[0]["weight"].abs().sum()) == 0.0, "one pass in vain, for gradients of 0"


def test_an_old_rollout_outside_todays_nucleus_is_impossible_as_for_a_scoring_pass(
    tmp_path: Path,
) -> None:
    trainer = tiny.trainer(
        tmp_path,
        max_steps=5,
        learning_rate=2e-3,
        temperature=0.7,
        top_p=0.9,
        curriculum={"fresh_share": 0.5, "estimator.refresh_share": 0.0},
    )
    found: dict[int, float] = {}
    finish = trainer.finish_step

    def before_the_update(*given: Any, **named: Any) -> Any:
        """What a scoring pass says of replayed rollouts, when the update has not begun."""
        buffer = trainer.curriculum.buffer
        held = np.flatnonzero(buffer.has_behaviour & (buffer["step"] < trainer.curriculum.step - 1))
        scores = trainer.policy.score(
            [trainer.store.tokens(int(row)) for row in buffer["prompt"][held]],
            [buffer.batch([place]).response(0) for place in held],
            Sampling(0.7, 0.9),
        )
        found.update(zip(buffer["uid"][held].tolist(), scores.total.tolist(), strict=True))
        return real(*given, **named)

    real = trainer._lines.rolled_out
    trainer._lines.rolled_out = before_the_update  # type: ignore[method-assign]
    checked = []

    def compare() -> None:
        finish()
        buffer = trainer.curriculum.buffer
        now = buffer["scored_step"] == trainer.curriculum.step - 1
        for place in np.flatnonzero(now & (buffer["step"] < buffer["scored_step"])):
            checked.append((found[int(buffer["uid"][place])], float(buffer["current"][place])))

    trainer.callback_handler.callbacks[-1]._finish = compare
    trainer.train()
    wanted, given = np.array(checked).T
    assert len(wanted) > 8
    assert np.isneginf(wanted).any(), "some have left the nucleus"
    assert np.array_equal(np.isneginf(wanted), np.isneginf(given))
    there = np.isfinite(wanted)
    assert np.abs(wanted[there] - given[there]).max() < 1e-3


def test_with_dropout_the_update_is_not_taken_at_its_word(tmp_path: Path) -> None:
    model = tiny.blank(attention_dropout=0.5)
    trainer = tiny.trainer(tmp_path, model=model, max_steps=2, learning_rate=0.0, **SAMPLING)
    assert trainer.policy.drops_out
    trainer.train()
    buffer = trainer.curriculum.buffer
    known = np.flatnonzero(buffer.has_behaviour)
    assert len(known) == len(buffer)
    found = scored_again(trainer, known)
    assert np.abs(buffer["behaviour"][known] - found.total).max() < 1e-4


def test_a_varied_group_is_read_whole_where_it_may_be_replayed(tmp_path: Path) -> None:
    def halves(completions: list[Any], **_: Any) -> list[float]:
        return [(len(str(text)) % 3) / 2 for text in completions]

    trainer = tiny.trainer(
        tmp_path, max_steps=2, reward=halves, curriculum={"fresh_share": 0.5}, learning_rate=0.0
    )
    trainer.train()
    buffer = trainer.curriculum.buffer
    groups = [buffer["group"] == group for group in np.unique(buffer["group"])]
    varied = [mine for mine in groups if len(np.unique(buffer["reward"][mine])) > 1]
    assert varied
    assert all(buffer.has_behaviour[mine].all() for mine in varied)


def test_a_run_that_goes_on_samples_from_the_loaded_weights(tmp_path: Path) -> None:
    changes = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-2}
    tiny.trainer(tmp_path / "whole", **changes).train()
    told: list[str] = []
    resumed = tiny.trainer(tmp_path / "whole", **{**changes, "max_steps": 3})
    sync, generate = resumed.policy.generator.sync, resumed.policy.generator.generate
    resumed.policy.generator.sync = lambda: (told.append("sync"), sync())[1]
    resumed.policy.generator.generate = lambda *it: (told.append("generate"), generate(*it))[1]
    resumed.train(resume_from_checkpoint=True)
    assert told[:2] == ["sync", "generate"]


# --- out of memory --------------------------------------------------------------------------------


def test_an_update_that_does_not_fit_names_the_knob_and_keeps_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    whole = tiny.trainer(tmp_path / "whole", **changes)
    whole.train()
    trainer = tiny.trainer(tmp_path / "run", **changes)
    real = objective.batch_logprobs

    def full(*given: Any) -> Any:
        if trainer.state.global_step == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has")
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(objective, "batch_logprobs", full)
        with pytest.raises(InvalidInput) as caught:
            trainer.train()
    said = str(caught.value)
    assert caught.value.field == "per_device_train_batch_size"
    for part in ("out of memory in train", "9 GiB", "gradient_checkpointing", "checkpoint-2"):
        assert part in said
    assert checkpoint.newest(tmp_path / "run").name == "checkpoint-2"
    resumed = tiny.trainer(tmp_path / "run", **changes)
    resumed.train(resume_from_checkpoint=True)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_embedding_that_does_not_fit_at_the_start_names_the_knob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **rest: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has")

    monkeypatch.setattr(policies, "embed_prompts", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    trainer = tiny.trainer(tmp_path, preset="paper")
    with pytest.raises(InvalidInput, match=r"out of memory in start-up .*9 GiB") as caught:
        trainer.train()
    assert caught.value.field == "score_batch_tokens"


@pytest.mark.parametrize("name", READINGS)
def test_a_reading_that_does_not_fit_reads_less_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(tiny.policy(), tiny.tokenizer(), batch_tokens=4096)
    whole = READINGS[name](policy)
    real, tried = getattr(policies, name), []

    def small(*given: Any, max_batch_tokens: int, **rest: Any) -> Any:
        tried.append(max_batch_tokens)
        if max_batch_tokens > 1024:
            raise torch.OutOfMemoryError("no")
        return real(*given, max_batch_tokens=max_batch_tokens, **rest)

    monkeypatch.setattr(policies, name, small)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    again = READINGS[name](policy)
    assert tried == [4096, 2048, 1024]
    assert np.allclose(again, whole, atol=1e-5)


def test_a_reading_that_never_fits_ends_with_the_error_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*given: Any, max_batch_tokens: int, **rest: Any) -> Any:
        raise torch.OutOfMemoryError(f"at {max_batch_tokens}")

    monkeypatch.setattr(policies, "score", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    policy = Policy(tiny.policy(), tiny.tokenizer(), batch_tokens=4096)
    with pytest.raises(torch.OutOfMemoryError, match="at 512"):
        READINGS["score"](policy)
