"""Weights for rollouts that an engine drew in the policy's place: the two never quite agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

Mode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
MODES = get_args(Mode)

_DIFFERENCE, _RATIO = "sampling/sampling_logp_difference", "sampling/importance_sampling_ratio"
GAP_FIGURES = (
    *(f"{_DIFFERENCE}/mean", f"{_DIFFERENCE}/max"),
    *(f"{_RATIO}/min", f"{_RATIO}/mean", f"{_RATIO}/max"),
)
"""What is logged of the gap between engine and policy, under TRL's names."""


@dataclass(frozen=True)
class Correction:
    """Importance weights pi / pi_engine, bounded as TRL bounds them.

    Of each token, or of whole responses (the product over their tokens); outside of [low, high]
    they are cut to it (`truncate`), or 0 (`mask`).
    """

    mode: Mode = "sequence_mask"
    low: float | None = None
    high: float | None = 3.0

    def weights(self, difference: Tensor, length: Tensor) -> Tensor:
        """A weight for each token [N]. `difference` is the policy's log-prob less the engine's,
        both of the distribution drawn from; 0 where it is not known. `length` has the tokens of
        each response, one behind another."""
        if self.of_responses:
            total = torch.segment_reduce(difference, "sum", lengths=length)
            ratio = total.exp()[torch.repeat_interleave(length)]
        else:
            ratio = difference.exp()
        low = 0.0 if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if self.mode.endswith("truncate"):
            return ratio.clamp(low, high)
        return torch.where((ratio < low) | (ratio > high), 0.0, ratio)

    @property
    def of_responses(self) -> bool:
        """Whether all tokens of a response have one weight."""
        return self.mode.startswith("sequence")


class Gap:
    """How far engine and policy are apart, over what a process trains on in a step."""

    def __init__(self) -> None:
        self.row = np.array([0.0, 0.0, 0.0, 0.0, 0.0, math.inf, -math.inf])
        """Tokens, sum of their differences, weights, their sum; the largest difference, the
        smallest and the largest weight. To gather."""

    def note(self, difference: Tensor, weight: Tensor) -> None:
        """Add differences of tokens, and the weights: one a token, or one a response."""
        if not len(difference):
            return
        size = difference.abs()
        self.row[:4] += (len(size), float(size.sum()), len(weight), float(weight.sum()))
        self.row[4] = max(self.row[4], float(size.max()))
        self.row[5] = min(self.row[5], float(weight.min()))
        self.row[6] = max(self.row[6], float(weight.max()))

    @staticmethod
    def figures(rows: list[Any]) -> dict[str, float]:
        """The figures of all processes' rows; none where no engine told anything."""
        table = np.stack(rows)
        tokens, difference, weights, ratio = table[:, :4].sum(axis=0).tolist()
        if not tokens:
            return {}
        largest, _, high = table[:, 4:].max(axis=0).tolist()
        values = (difference / tokens, largest, table[:, 5].min(), ratio / weights, high)
        return dict(zip(GAP_FIGURES, map(float, values), strict=True))


def corrected(
    sampled: Tensor, drawn: Tensor, length: Tensor, how: Correction, gap: Gap | None = None
) -> Tensor:
    """The weight of each token, from its log-probs by policy and engine (NaN: not known, weight
    1); `gap` takes note."""
    known = ~drawn.isnan()
    difference = torch.where(known, sampled - drawn, 0.0)
    weight = how.weights(difference, length)
    if gap is not None:
        counted = known
        if how.of_responses:
            first = torch.zeros_like(known)
            first[(length.cumsum(0) - length)[length > 0]] = True
            counted = known & first
        gap.note(difference[known], weight[counted])
    return weight
