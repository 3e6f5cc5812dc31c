"""From rollouts to the batch that the trainer trains on (METHOD 6 and 8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dare.config import AdvantageConfig
from dare.curriculum.advantages import advantages, thinned
from dare.curriculum.arrays import Array, compact
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.plan import StepPlan
from dare.curriculum.rollouts import RolloutBatch
from dare.curriculum.tiers import TierPolicy


@dataclass(frozen=True)
class TrainBatch:
    """Fresh rollouts, then replayed ones, with all that the objective needs per rollout."""

    rollouts: RolloutBatch
    uid_R: Array
    """Buffer uid of every rollout; -1 for unscored ones, which are not kept."""
    fresh_R: Array
    """True where the policy of this step sampled it, in the plan or in a probe before it: log-probs
    that the update computes before it changes the policy are then those of the behaviour."""
    group_R: Array
    tier_R: Array
    advantage_R: Array
    weight_R: Array
    """1 / (prompts x scored rollouts of the group); 0 for unscored. Times the mean over tokens."""
    clip_low_R: Array
    clip_high_R: Array
    varied_N: Array
    shaping_share: float


def build_batch(
    fresh: RolloutBatch,
    plan: StepPlan,
    buffer: RolloutBuffer,
    replay: Array,
    difficulty_P: Array,
    tiers: TierPolicy,
    settings: AdvantageConfig,
    rng: np.random.Generator,
) -> TrainBatch:
    """Advantages inside each group from raw rewards; replayed groups are shaped by the difficulty
    of now, fresh ones by the difficulty that planned them. `rng` thins what says little.

    `replay` holds positions in the buffer; the fresh rollouts are not in it yet.
    """
    order = np.argsort(plan.prompt_P)
    place = order[np.searchsorted(plan.prompt_P[order], fresh.prompt_R)]
    old = buffer.batch(replay)
    group_ids, replay_group = compact(buffer["group"][replay])
    rollouts = RolloutBatch.concatenate([fresh, old])
    difficulty = np.concatenate([plan.difficulty_P[place], difficulty_P[old.prompt_R]])
    tier = np.concatenate([plan.tier_P[place], tiers.assign(difficulty_P[old.prompt_R])])
    _, fresh_group = compact(fresh.prompt_R)
    fresh_groups = int(fresh_group.max(initial=-1)) + 1
    group = np.concatenate([fresh_group, replay_group + fresh_groups])
    result = advantages(
        rollouts.reward_R,
        rollouts.length_R,
        group,
        tiers.shaping_weight(tier, difficulty),
        settings,
        rollouts.success_R,
    )
    scored = rollouts.scored_R
    size = np.bincount(group, weights=scored, minlength=fresh_groups + len(group_ids))
    # A group with one scored rollout has nothing to compare it with: it is left out like one
    # with none, and does not count among the prompts of the mean.
    usable = size >= 2
    weight = np.where(scored & usable[group], 1.0 / np.maximum(size[group], 1.0), 0.0)
    weight /= max(int(usable.sum()), 1)
    return TrainBatch(
        rollouts=rollouts,
        uid_R=np.concatenate([buffer.uids_of(fresh), buffer["uid"][replay]]),
        fresh_R=np.concatenate([np.ones(len(fresh), bool), buffer["step"][replay] == plan.step]),
        group_R=group,
        tier_R=tier,
        advantage_R=thinned(result.advantage_R, settings.thin_below, rng),
        weight_R=weight,
        clip_low_R=tiers.clip_low[tier],
        clip_high_R=tiers.clip_high[tier],
        varied_N=result.varied_N,
        shaping_share=result.shaping_share,
    )
