"""Rollouts that could not be scored: no gradient, no evidence, and a stop when there are many."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from dare.rewards import math_reward
from dare.runs.checkpoint import checkpoints
from dare.training.unscored import TooManyUnscored, UnscoredWindow
from dare_verify.math import MathVerifier, WorkerPool


class Flaky:
    """The lottery's verdict through workers, some of which hang or crash."""

    def __init__(
        self, pool: WorkerPool, hang: float, crash: float, kill_at: int | None = None
    ) -> None:
        self.verifier = MathVerifier(pool)
        self._shares, self._kill_at, self.calls = (hang, crash), kill_at, 0
        self.none: list[list[bool]] = []

    def __call__(
        self, prompts: list[str], completions: list[str], chance: list[float], **_: Any
    ) -> list[float | None]:
        right = tiny.lottery(prompts, completions, chance)
        lots = [
            tiny.luck(text, f"{prompt} {self.calls}")
            for prompt, text in zip(prompts, completions, strict=True)
        ]
        hang, crash = self._shares
        self.verifier.fault = lambda row: (
            "hang" if lots[row] < hang else "crash" if lots[row] < hang + crash else None
        )
        if self.calls == self._kill_at:
            found = self.verifier.pool.pids()
            assert found
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self.calls += 1
        # Surds, so that a worker is asked and not only the exact comparison.
        texts = [rf"\boxed{{\sqrt{{{2 if value else 3}}}}}" for value in right]
        verdicts = self.verifier.verify_batch(texts, [r"2^{1/2}"] * len(texts))
        self.none.append([lot < hang + crash for lot in lots])
        return [None if verdict is None else float(verdict) for verdict in verdicts]


def watch(trainer: Any) -> list[tuple[Any, Any, Any]]:
    """(rollouts, batch, trials that the estimator got) of every step, as they happen."""
    seen: list[tuple[Any, Any, Any]] = []
    trainer._start(None)
    curriculum = trainer.curriculum
    observe, learn = curriculum.observe, curriculum.estimator.observe
    outcomes: list[Any] = []

    def learned(outcome: Any) -> None:
        outcomes.append(outcome)
        learn(outcome)

    def observed(rollouts: Any) -> Any:
        batch = observe(rollouts)
        seen.append((rollouts, batch, outcomes[-1]))
        return batch

    curriculum.estimator.observe, curriculum.observe = learned, observed
    return seen


def test_time_outs_and_crashes_leave_no_gradient_and_no_evidence(
    tmp_path: Path, math_pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(math_pool, "limit_s", 0.5)
    reward = Flaky(math_pool, 0.10, 0.05)
    trainer = tiny.trainer(tmp_path, reward=reward, max_steps=3, rollout_budget=64)
    seen = watch(trainer)
    trainer._start = lambda found: None  # started above, with the watch in place
    trainer.train()
    assert trainer.state.global_step == 3
    faulty = np.concatenate([np.array(rows) for rows in reward.none])
    scored = np.concatenate([rollouts.scored_R for rollouts, _, _ in seen])
    assert np.array_equal(~scored, faulty)
    assert 0.08 < faulty.mean() < 0.25
    for rollouts, batch, outcome in seen:
        counted = rollouts.scored_R & rollouts.plain_R
        trials = np.bincount(rollouts.prompt_R[counted], minlength=12)
        failed = np.bincount(
            rollouts.prompt_R[counted], 1.0 - rollouts.reward_R[counted], minlength=12
        )
        assert np.array_equal(trials[outcome.prompt_Q], outcome.trials_Q)
        assert trials.sum() == outcome.trials_Q.sum()
        assert np.allclose(failed[outcome.prompt_Q], outcome.failures_Q)
        if batch is not None:
            unscored = ~batch.rollouts.scored_R
            assert (batch.weight_R[unscored] == 0).all()
            assert (batch.advantage_R[unscored] == 0).all()
            assert batch.weight_R.sum() == pytest.approx(1.0)
    assert len(trainer.curriculum.buffer) == scored.sum()


def test_a_killed_pool_costs_at_most_the_rows_in_flight(tmp_path: Path, light_worker: str) -> None:
    with WorkerPool(light_worker) as pool:
        reward = Flaky(pool, 0.0, 0.0, kill_at=1)
        trainer = tiny.trainer(tmp_path, reward=reward, max_steps=3)
        trainer.train()
        assert pool.counts["restarts"] >= 1
    records = tiny.lines(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == [0, 1, 2]
    assert records[-1]["unscored"] == 0


def test_the_run_stops_with_a_message_and_goes_on_when_mended(tmp_path: Path) -> None:
    settings = {"max_steps": 8, "unscored_window": 3, "save_strategy": "no", "rollout_budget": 64}
    trainer = tiny.trainer(tmp_path, reward=tiny.patchy, **settings)
    with pytest.raises(TooManyUnscored, match=r"unscored_limit = 0\.05: .*of the last 3 steps"):
        trainer.train()
    assert trainer.state.global_step == 3
    assert len(checkpoints(tmp_path)) == 1
    mended = tiny.trainer(tmp_path, reward=tiny.lottery, **settings)
    mended.train(resume_from_checkpoint=True)
    assert mended.state.global_step == 8


def test_a_higher_limit_goes_on(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path, reward=tiny.patchy, max_steps=4, unscored_window=2, unscored_limit=1.0
    )
    trainer.train()
    assert trainer.state.global_step == 4


def test_the_window_is_judged_when_full_and_slides() -> None:
    window = UnscoredWindow(0.05, 3)
    for unscored in (10, 0):
        window.observe(unscored, 100)
        assert not window.exceeded
    window.observe(5, 100)
    assert window.share == pytest.approx(0.05)
    assert not window.exceeded
    window.observe(20, 100)
    assert window.exceeded
    again = UnscoredWindow(0.05, 3)
    again.load(window.state())
    assert not again.exceeded  # the run that it stopped has been looked at


def test_golds_that_cannot_be_right_are_named_at_load_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tiny.problems(0.5, each=4)
    data[2]["answer"] = r"\frac{1"
    with caplog.at_level(logging.WARNING):
        trainer = tiny.trainer(tmp_path, reward=math_reward, data=data)
    bad = [row for row, record in enumerate(trainer.store.records) if "frac" in record["answer"]]
    assert bad != [2]  # the table has an order of its own; the message speaks of the data's
    assert "row 2 cannot be scored" in caplog.text
    assert len([line for line in caplog.messages if "cannot be scored" in line]) == 1
