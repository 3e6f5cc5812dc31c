"""The curriculum's figures of one observed step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.batch import TrainBatch
from dare.curriculum.plan import StepPlan
from dare.curriculum.rollouts import Conditioning, RolloutBatch

if TYPE_CHECKING:
    from dare.curriculum.curriculum import Curriculum


def step_metrics(
    curriculum: Curriculum,
    plan: StepPlan,
    rollouts: RolloutBatch,
    batch: TrainBatch | None,
    errors_Q: Array,
) -> dict[str, float]:
    """Measured values only; what cannot be measured in a step is absent from it.

    `prediction_error` is the mean distance of the planned difficulty from the realised failure
    rate. The latter is itself noisy, so even a perfect estimate shows its intrinsic error here.
    """
    scored = rollouts.scored_R
    values: dict[str, float] = {
        "step": plan.step,
        "probe": float(not plan.train),
        "prompts": len(plan.prompt_P),
        "rollouts": len(rollouts),
        "unscored": int((~scored).sum()),
        "generated_tokens": int(rollouts.length_R.sum()),
        "coverage": curriculum.coverage,
        "buffered_rollouts": len(curriculum.buffer),
    }
    for name, count in plan.tier_counts().items():
        values[f"tier_{name}"] = count
    conditioning = np.bincount(rollouts.conditioning_R, minlength=len(Conditioning))
    for kind in Conditioning:
        values[f"rollouts_{kind.name.lower()}"] = int(conditioning[kind])
    rewards = rollouts.reward_R[scored]
    if batch is not None:  # groups that probes brought included
        rewards = batch.rollouts.reward_R[batch.fresh_R & batch.rollouts.scored_R]
    if len(rewards):
        values["reward"] = float(rewards.mean())
    if len(errors_Q):
        values["prediction_error"] = float(errors_Q.mean())
    if batch is not None:
        values["replayed_rollouts"] = plan.replay_rollouts
        values["shaping_share"] = batch.shaping_share
        if len(batch.varied_N):
            values["groups"] = len(batch.varied_N)
            values["varied_groups"] = float(batch.varied_N.mean())
    return {**values, **curriculum.estimator.metrics()}
