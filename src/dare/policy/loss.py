"""The difficulty-conditioned clipped objective (METHOD 8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """Per token of a micro-batch (flat, N tokens). Rollout-level values are repeated.

    weight is 1 / (prompts x rollouts of the group x tokens of the rollout): summed over all
    micro-batches of all processes, the terms make the mean over prompts of the mean over
    rollouts of the mean over tokens.
    """

    behaviour: Tensor
    advantage: Tensor
    weight: Tensor
    clip_low: Tensor
    clip_high: Tensor
    reference: Tensor | None = None


@dataclass(frozen=True)
class LossOutputs:
    """The loss and what it was made of (detached sums, ready to be added up)."""

    loss: Tensor
    clipped: Tensor
    kl: Tensor


def clipped_loss(logprob: Tensor, inputs: LossInputs, beta: float = 0.0) -> LossOutputs:
    """Minus the weighted sum of min(ratio A, clip(ratio, 1 - eps_lo, 1 + eps_hi) A) - beta KL.

    KL is the k3 estimator to the reference policy, exp(d) - d - 1 with d = log ref - log pi: it
    is never negative and its gradient vanishes where both agree.
    """
    ratio = (logprob - inputs.behaviour).exp()
    bounded = torch.minimum(torch.maximum(ratio, 1.0 - inputs.clip_low), 1.0 + inputs.clip_high)
    gain = torch.minimum(ratio * inputs.advantage, bounded * inputs.advantage)
    term = gain
    kl = torch.zeros((), device=logprob.device)
    if beta > 0.0 and inputs.reference is not None:
        gap = inputs.reference - logprob
        divergence = gap.exp() - gap - 1.0
        term = gain - beta * divergence
        kl = (divergence.detach() * inputs.weight).sum()
    with torch.no_grad():
        stopped = (bounded != ratio) & (bounded * inputs.advantage < ratio * inputs.advantage)
        clipped = (stopped * inputs.weight).sum()
    return LossOutputs(-(term * inputs.weight).sum(), clipped, kl)
