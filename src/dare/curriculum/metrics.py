"""The curriculum's figures of one observed step."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.batch import TrainBatch
from dare.curriculum.plan import StepPlan
from dare.curriculum.rollouts import Conditioning, Finish, RolloutBatch
from dare.curriculum.tiers import Tier


def step_metrics(
    plan: StepPlan, rollouts: RolloutBatch, batch: TrainBatch | None, errors_Q: Array
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
        values |= treatment_metrics(batch, len(rollouts))
        if len(batch.varied_N):
            values["groups"] = len(batch.varied_N)
            values["varied_groups"] = float(batch.varied_N.mean())
    return values


def treatment_metrics(batch: TrainBatch, fresh: int) -> dict[str, float]:
    """What the tiers and their help do: by tier, `reward_easy` and `truncated_easy` of the fresh
    rollouts and `advantage_easy`, its share of the objective's absolute advantage; by
    conditioning, `reward_hinted`. Absent where there are no such rollouts.
    """
    rollouts, values = batch.rollouts, dict[str, float]()
    now, scored = np.arange(len(rollouts)) < fresh, rollouts.scored_R
    mass = np.abs(batch.advantage_R) * batch.weight_R
    cut = rollouts.finish_R == Finish.LENGTH
    for tier in Tier:
        mine, name = batch.tier_R == tier, tier.name.lower()
        if mine.any() and mass.any():
            values[f"advantage_{name}"] = float(mass[mine].sum() / mass.sum())
        if (mine & now).any():
            values[f"truncated_{name}"] = float(cut[mine & now].mean())
    kinds: list[tuple[type[IntEnum], Array]] = [
        (Tier, batch.tier_R),
        (Conditioning, rollouts.conditioning_R),
    ]
    for kind, code_R in kinds:
        for member in kind:
            mine = now & scored & (code_R == member)
            if mine.any():
                values[f"reward_{member.name.lower()}"] = float(rollouts.reward_R[mine].mean())
    return values
