"""The true failure rate of training prompts, from many fresh rollouts, and what estimates miss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dare.curriculum.arrays import keyed_rng
from dare.policy.generate import GenerationRequest

if TYPE_CHECKING:
    from dare.training.trainer import DareTrainer


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
    place = np.repeat(np.arange(len(rows)), total)
    request = GenerationRequest(
        prompts=[trainer.store.tokens(int(row)) for row in rows],
        prompt_R=place,
        max_tokens_R=np.full(len(place), trainer.settings.max_tokens, dtype=np.int64),
        noise_R=np.arange(len(place)),
        seed=trainer.args.seed,
        step=trainer.state.global_step,
        purpose="truth",
    )
    generated = trainer.policy.generate(request, trainer.args.sampling)
    reward = trainer.collector.reward(rows[place], generated.tokens)
    values = np.array([np.nan if value is None else value for value in reward])
    failure = 1.0 - values.reshape(len(rows), total)
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
