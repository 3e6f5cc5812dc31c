"""One run with a budget of generated tokens, new or continued from its newest checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

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
    """Train in `folder` until the tokens are generated, or for the recipe's steps without them."""
    training = {**(recipe.get("training") or {}), "output_dir": str(folder), "disable_tqdm": True}
    stop = [] if tokens is None else [StopAtTokens(tokens)]
    trainer = build({**recipe, "training": training}, callbacks=[*callbacks, *stop])
    trainer.quiet()
    for callback in stop:
        callback.trainer = trainer
    trainer.train(resume_from_checkpoint=resume)
    return trainer
