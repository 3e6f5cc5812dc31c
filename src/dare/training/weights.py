"""How much each token of a rollout counts in the loss: `loss_type` and cut-off responses."""

from __future__ import annotations

import numpy as np

from dare.curriculum import TrainBatch
from dare.curriculum.arrays import Array
from dare.curriculum.rollouts import Finish


def token_weights(
    batch: TrainBatch, loss_type: str, max_tokens: int, *, mask_truncated: bool = False
) -> Array:
    """Per rollout the weight of one of its tokens, 0 where it is not trained on.

    grpo          the mean over prompts, over a group's rollouts, over a rollout's tokens
    dapo, cispo   every token alike: one over the tokens of all rollouts
    dr_grpo       every token alike: one over the rollouts times `max_tokens`

    As in TRL, a cut-off rollout that is masked counts among the rollouts, but its tokens do not.
    """
    usable = batch.weight_R > 0
    shown = usable & (batch.rollouts.finish_R != Finish.LENGTH) if mask_truncated else usable
    length = batch.rollouts.length_R
    if loss_type == "grpo":
        weight = batch.weight_R / np.maximum(length, 1)
    elif loss_type == "dr_grpo":
        weight = np.full(len(length), 1.0 / (max(int(usable.sum()), 1) * max_tokens))
    else:
        weight = np.full(len(length), 1.0 / max(int(length[shown].sum()), 1))
    return np.where(shown, weight, 0.0)
