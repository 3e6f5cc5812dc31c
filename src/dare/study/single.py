"""One run with a budget of generated tokens, and the true failure rates of its policy."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from dare.curriculum.arrays import Array, keyed_rng
from dare.errors import require
from dare.training.recipe import build, resolved
from dare.training.trainer import DareTrainer

_SCHEDULES = ("constant", "constant_with_warmup")


class StopAtTokens(TrainerCallback):
    """Ends training with the step in which the generated tokens reach the budget.

    Probes count: every token that a method generates is paid for.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.trainer: DareTrainer | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        if self.trainer is not None and self.trainer.generated_tokens >= self.budget:
            control.should_training_stop = True
            control.should_evaluate = True
            # Resuming from here would train a step too many.
            control.should_save = False


def budgeted(recipe: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """The recipe with enough steps to generate the tokens, whatever the method.

    The budget ends the run, so the number of steps only bounds it: every rollout has at least one
    token. A schedule that is drawn over the steps of a run would differ between methods at equal
    tokens and is refused.
    """
    require(tokens >= 1, "tokens", tokens, "each run needs a budget of generated tokens")
    training = dict(recipe.get("training") or {})
    config = resolved(recipe)
    schedule = str(getattr(config.lr_scheduler_type, "value", config.lr_scheduler_type))
    fix = f"runs of equal tokens have unequal steps; use {' or '.join(_SCHEDULES)}"
    require(schedule in _SCHEDULES, "lr_scheduler_type", schedule, fix)
    ratio = getattr(config, "warmup_ratio", None) or config.warmup_steps % 1
    fix = "a share of the steps is not the same for every method; give a whole number of steps"
    require(not ratio, "warmup_steps", ratio, fix)
    fix = "accuracy over tokens is what a study compares: name held-out data"
    require(recipe.get("eval_data"), "eval_data", recipe.get("eval_data"), fix)
    settings = config.curriculum_config()
    rollouts = max(1, int(settings.rollout_budget * settings.fresh_share) - 1)
    steps = max(4 * config.max_steps, math.ceil(tokens / rollouts) + 1)
    return {**recipe, "training": {**training, "max_steps": steps}}


def train(
    recipe: Mapping[str, Any],
    folder: Path,
    tokens: int | None = None,
    callbacks: Sequence[Any] = (),
    *,
    resume: bool = False,
) -> DareTrainer:
    """Train in `folder` until the tokens are generated, or for the recipe's steps without them;
    `stopped_by` of what is returned tells of a signal."""
    stop = [] if tokens is None else [StopAtTokens(tokens)]
    trainer = made(recipe, folder, [*callbacks, *stop])
    for callback in stop:
        callback.trainer = trainer
    trainer.train_or_stop(resume_from_checkpoint=resume)
    return trainer


def made(
    recipe: Mapping[str, Any], folder: Path, callbacks: Sequence[Any], **changes: Any
) -> DareTrainer:
    """The trainer of a recipe that writes to `folder`, with our bars alone."""
    own = {"output_dir": str(folder), "disable_tqdm": True, **changes}
    training = {**(recipe.get("training") or {}), **own}
    trainer = build({**recipe, "training": training}, callbacks=list(callbacks))
    trainer.quiet()
    trainer.again = "the same command"
    return trainer


def made_to_measure(
    recipe: Mapping[str, Any], folder: Path, callbacks: Sequence[Any], fix: str, **changes: Any
) -> DareTrainer:
    """The same without evaluations, which change nothing that is measured; one process alone."""
    unevaluated = {"eval_strategy": "no", "eval_on_start": False, "load_best_model_at_end": False}
    trainer = made(recipe, folder, callbacks, **unevaluated, **changes)
    processes = trainer.accelerator.num_processes
    require(processes == 1, "processes", processes, fix)
    return trainer


@dataclass(frozen=True)
class Fresh:
    """failure_QR of each rollout (NaN where it could not be scored) and what they took."""

    failure_QR: Array
    tokens: int
    seconds: float

    @property
    def trials_Q(self) -> Array:
        """Scored rollouts of each prompt."""
        return np.isfinite(self.failure_QR).sum(axis=1)

    @property
    def failures_Q(self) -> Array:
        """Failures of each prompt among them."""
        return np.nansum(self.failure_QR, axis=1)

    @property
    def rate_Q(self) -> Array:
        """Failure rate of each prompt, NaN where nothing could be scored."""
        trials = self.trials_Q
        empty = np.full(len(trials), np.nan)
        return np.divide(self.failures_Q, trials, out=empty, where=trials > 0)


def fresh_rollouts(
    trainer: DareTrainer, rows: Array, count: int, purpose: str, noise_R: Array | None = None
) -> Fresh:
    """`count` rollouts of each row, outside of the run: no budget, no record, no draw of it.

    Keyed by (seed, step, purpose, prompt): the other prompts asked for change nothing, unless
    `noise_R` gives other keys.
    """
    start = time.perf_counter()
    collector = trainer.collector
    place = np.repeat(np.arange(len(rows)), count)
    if noise_R is None:
        noise_R = rows[place] * count + np.tile(np.arange(count), len(rows))
    mine = collector.company.share(len(place))
    prompts = [trainer.store.tokens(int(row)) for row in rows]
    key, most = (trainer.state.global_step, purpose), trainer.settings.max_tokens
    written = collector.generate(prompts, place[mine], noise_R[mine], most, key).tokens
    rewards = collector.judge(rows[place[mine]], written).success
    failure = [np.nan if reward is None else 1.0 - reward for reward in rewards]
    sizes = [len(tokens) for tokens in written]
    local = np.column_stack([np.array(failure, float), np.array(sizes, float)])
    shared = collector.company.exchange(local)
    return Fresh(
        failure_QR=shared[:, 0].reshape(len(rows), count),
        tokens=int(shared[:, 1].sum()),
        seconds=time.perf_counter() - start,
    )


def estimation_error(
    trainer: DareTrainer, prompts: int = 96, rollouts: int = 64, group: int = 8
) -> dict[str, Any]:
    """Error of the curriculum's estimate on seen prompts, beside that of `group` fresh rollouts.

    Truth is the failure rate of `rollouts` fresh rollouts a prompt. Its own sampling error adds a
    little to both figures: the fresh group is not part of the truth it is held against.
    """
    curriculum = trainer.curriculum
    assert curriculum is not None, "the trainer has been started"
    seen = np.flatnonzero(curriculum.visits_P > 0)
    rng = keyed_rng(trainer.args.seed, trainer.state.global_step, "truth prompts")
    rows = np.sort(rng.choice(seen, size=min(prompts, len(seen)), replace=False))
    total = rollouts + group
    failure = fresh_rollouts(trainer, rows, total, "truth", np.arange(len(rows) * total)).failure_QR
    scored = np.isfinite(failure[:, group:]).any(axis=1) & np.isfinite(failure[:, :group]).any(
        axis=1
    )
    rows, failure = rows[scored], failure[scored]
    truth = np.nanmean(failure[:, group:], axis=1)
    fresh = np.nanmean(failure[:, :group], axis=1)
    estimate = curriculum.difficulty()[rows]
    return {
        "prompts": len(rows),
        "rollouts": rollouts,
        "mae": float(np.abs(estimate - truth).mean()),
        "mae_fresh": float(np.abs(fresh - truth).mean()),
        "mse": float(((estimate - truth) ** 2).mean()),
        "mse_fresh": float(((fresh - truth) ** 2).mean()),
        "estimate": estimate.tolist(),
        "truth": truth.tolist(),
    }
