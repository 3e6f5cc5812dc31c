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
_CORRECTED = f"{_DIFFERENCE}/corrected_mean"
GAP_FIGURES = (
    *(f"{_DIFFERENCE}/mean", f"{_DIFFERENCE}/max", _CORRECTED),
    *(f"{_RATIO}/min", f"{_RATIO}/mean", f"{_RATIO}/max", "sampling/masked_share"),
)
"""What is logged of the gap between engine and policy, before and after correction: under TRL's
names, but for `corrected_mean` and `masked_share`, which it does not have."""


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
        self.row = np.array([0.0] * 8 + [math.inf, -math.inf])
        """Tokens, sum of their differences, of their weights, of the two multiplied; weights that
        count, their sum, how many of them are 0; the largest difference, the smallest and the
        largest weight. To gather."""

    def note(self, difference: Tensor, weight: Tensor, counted: Tensor) -> None:
        """Add differences and weights of tokens, and the weights that count: one a token, or one a
        response."""
        if not len(difference):
            return
        size, weight = difference.abs().double(), weight.double()
        self.row[:4] += (len(size), float(size.sum()), float(weight.sum()), float(weight @ size))
        self.row[4:7] += (len(counted), float(counted.sum()), float((counted == 0).sum()))
        self.row[7] = max(self.row[7], float(size.max()))
        self.row[8] = min(self.row[8], float(counted.min()))
        self.row[9] = max(self.row[9], float(counted.max()))

    @staticmethod
    def figures(rows: list[Any]) -> dict[str, float]:
        """The figures of all processes' rows; none where no engine told anything, and no corrected
        mean where every token has weight 0."""
        table = np.stack(rows)
        tokens, difference, weight, product, weights, ratio, zero = table[:, :7].sum(axis=0)
        if not tokens:
            return {}
        largest, _, high = table[:, 7:].max(axis=0)
        after = product / weight if weight > 0 else math.nan
        of_weights = (table[:, 8].min(), ratio / weights, high, zero / weights)
        values = (difference / tokens, largest, after, *of_weights)
        found = dict(zip(GAP_FIGURES, map(float, values), strict=True))
        return {name: value for name, value in found.items() if not math.isnan(value)}


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
        gap.note(difference[known], weight[known], weight[counted])
    return weight
