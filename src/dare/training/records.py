"""What a step leaves behind for people: its selection and a few rollouts to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.plan import StepPlan
from dare.curriculum.rollouts import Conditioning, Finish, RolloutBatch
from dare.curriculum.tiers import Tier

if TYPE_CHECKING:
    from dare.training.trainer import DareTrainer


def selection_record(plan: StepPlan, rollouts: RolloutBatch) -> dict[str, Any]:
    """Per prompt of the plan: id, tier, difficulty, group size, realised failure rate, tokens."""
    counted = rollouts.plain_R & rollouts.scored_R
    everywhere = _places(plan, rollouts)
    place = everywhere[counted]
    tokens = np.bincount(everywhere, weights=rollouts.length_R, minlength=len(plan.prompt_P))
    count = np.bincount(place, minlength=len(plan.prompt_P))
    failed = np.bincount(place, weights=1.0 - rollouts.reward_R[counted], minlength=len(count))
    rate = np.divide(failed, count, out=np.full(len(count), np.nan), where=count > 0)
    return {
        "step": plan.step,
        "prompt": plan.ids,
        "tier": [Tier(tier).name.lower() for tier in plan.tier_P.tolist()],
        "difficulty": np.round(plan.difficulty_P, 4).tolist(),
        "group_size": plan.group_size_P.tolist(),
        "failure_rate": np.round(rate, 4).tolist(),
        "tokens": tokens.astype(int).tolist(),
        "replayed_groups": len(plan.replay),
    }


def _places(plan: StepPlan, rollouts: RolloutBatch) -> Array:
    """Where in the plan the prompt of each rollout stands."""
    order = np.argsort(plan.prompt_P)
    return order[np.searchsorted(plan.prompt_P[order], rollouts.prompt_R)]


def sample_records(
    trainer: DareTrainer, plan: StepPlan, rollouts: RolloutBatch, count: int
) -> list[dict[str, Any]]:
    """Up to `count` rollouts of each tier, the first right and the first wrong one preferred."""
    if not trainer.folder.writes or count == 0:
        return []
    place_of = {int(row): place for place, row in enumerate(plan.prompt_P)}
    places = np.array([place_of[int(row)] for row in rollouts.prompt_R])
    records = []
    for tier in Tier:
        rows = np.flatnonzero(plan.tier_P[places] == tier) if len(places) else places
        # Right and wrong alternate, so that two rows show one of each where there are both.
        right = [row for row in rows if rollouts.reward_R[row] == 1.0]
        wrong = [row for row in rows if rollouts.reward_R[row] != 1.0]
        mixed = [row for pair in zip(right, wrong, strict=False) for row in pair]
        picked = (mixed or [*right, *wrong])[:count]
        for row in picked:
            place = places[row]
            part = slice(rollouts.offsets[row], rollouts.offsets[row + 1])
            reward = float(rollouts.reward_R[row])
            records.append(
                {
                    "step": plan.step,
                    "id": plan.ids[place],
                    "tier": tier.name.lower(),
                    "difficulty": float(plan.difficulty_P[place]),
                    "conditioning": Conditioning(rollouts.conditioning_R[row]).name.lower(),
                    "hint": plan.hints[place],
                    "prompt": trainer.store.records[int(rollouts.prompt_R[row])]["prompt"],
                    "response": trainer.processing_class.decode(
                        rollouts.tokens[part], skip_special_tokens=True
                    ),
                    "reward": reward,
                    "tokens": int(part.stop - part.start),
                    "finish": Finish(rollouts.finish_R[row]).name.lower(),
                }
            )
    return records
