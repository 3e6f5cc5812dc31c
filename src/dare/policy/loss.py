"""The difficulty-conditioned clipped objective (METHOD 8), and its variants under TRL's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

LossType = Literal["grpo", "dapo", "dr_grpo", "cispo"]
Level = Literal["token", "sequence"]
LOSS_TYPES, LEVELS = get_args(LossType), get_args(Level)


@dataclass(frozen=True)
class LossInputs:
    """Per token of a micro-batch (flat, N tokens). Rollout-level values are repeated.

    weight says how much a token counts (`training.update`). For `grpo` it is 1 / (prompts x
    rollouts of the group x tokens of the rollout): summed over all micro-batches of all processes,
    the terms make the mean over prompts of the mean over rollouts of the mean over tokens.
    length has one entry a rollout, the tokens it has among the N; only ratios of whole responses
    need it. correction weighs what an engine drew in the policy's place (`policy.correction`).
    """

    behaviour: Tensor
    advantage: Tensor
    weight: Tensor
    clip_low: Tensor
    clip_high: Tensor
    reference: Tensor | None = None
    length: Tensor | None = None
    correction: Tensor | None = None


@dataclass(frozen=True)
class LossOutputs:
    """The loss and what it was made of (detached sums, ready to be added up)."""

    loss: Tensor
    clipped: Tensor
    kl: Tensor
    clipped_high: Tensor
    """The part of `clipped` above the range; the rest is below it."""
    weight: Tensor
    """Of all tokens here: what `ratio` and `entropy` are to be divided by."""
    ratio: Tensor
    entropy: Tensor
    """Of what was drawn: -log pi is the next token's entropy in expectation."""


def clipped_loss(
    logprob: Tensor,
    inputs: LossInputs,
    beta: float = 0.0,
    *,
    loss_type: str = "grpo",
    level: str = "token",
) -> LossOutputs:
    """Minus the weighted sum of min(ratio A, clip(ratio, 1 - eps_lo, 1 + eps_hi) A) - beta KL.

    `cispo` has min(ratio, 1 + eps_hi) A log pi instead, the ratio taken as a constant: a token
    past the range goes on to teach, at the weight of the bound. Other types differ from `grpo` in
    the weights alone. With the level `sequence` all tokens of a rollout have one ratio, the
    geometric mean of theirs.

    KL is the k3 estimator to the reference policy, exp(d) - d - 1 with d = log ref - log pi: it
    is never negative and its gradient vanishes where both agree.
    """
    distance = logprob - inputs.behaviour
    if level == "sequence":
        distance = _mean_of_each(distance, inputs.length)
    ratio = distance.exp()
    if loss_type == "cispo":
        bounded = torch.minimum(ratio, 1.0 + inputs.clip_high).detach()
        gain = bounded * inputs.advantage * logprob
    else:
        bounded = torch.minimum(torch.maximum(ratio, 1.0 - inputs.clip_low), 1.0 + inputs.clip_high)
        gain = torch.minimum(ratio * inputs.advantage, bounded * inputs.advantage)
    if inputs.correction is not None:
        gain = gain * inputs.correction
    term = gain
    kl = torch.zeros((), device=logprob.device)
    if beta > 0.0 and inputs.reference is not None:
        gap = inputs.reference - logprob
        divergence = gap.exp() - gap - 1.0
        term = gain - beta * divergence
        kl = (divergence.detach() * inputs.weight).sum()
    with torch.no_grad():
        stopped = bounded != ratio
        if loss_type != "cispo":
            stopped = stopped & (bounded * inputs.advantage < ratio * inputs.advantage)
        clipped = (stopped * inputs.weight).sum()
        high = (stopped * (ratio > 1.0) * inputs.weight).sum()
        mean_ratio, entropy = (ratio * inputs.weight).sum(), -(logprob * inputs.weight).sum()
    loss = -(term * inputs.weight).sum()
    return LossOutputs(loss, clipped, kl, high, inputs.weight.sum(), mean_ratio, entropy)


def _mean_of_each(values: Tensor, length: Tensor | None) -> Tensor:
    """Every token gets the mean over its rollout."""
    assert length is not None, "ratios of whole responses need their lengths"
    mean = torch.segment_reduce(values, "mean", lengths=length)
    # Indexing, unlike repeat_interleave, adds gradients up in a fixed order on a GPU too.
    return mean[torch.repeat_interleave(length)]
