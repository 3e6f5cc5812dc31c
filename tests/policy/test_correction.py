"""Weights for what an engine drew, against plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dare.policy.correction import MODES, Correction, Gap, corrected
from dare.policy.loss import LossInputs, clipped_loss


def by_loops(
    rows: list[list[float]], mode: str, low: float | None, high: float | None
) -> list[float]:
    """TRL's rule, a token at a time."""
    weights = []
    for row in rows:
        for difference in row:
            ratio = math.exp(sum(row) if mode.startswith("sequence") else difference)
            outside = (low is not None and ratio < low) or (high is not None and ratio > high)
            if outside and mode.endswith("mask"):
                ratio = 0.0
            elif outside:
                ratio = min(max(ratio, low or 0.0), math.inf if high is None else high)
            weights.append(ratio)
    return weights


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("low", "high"), [(None, 3.0), (0.5, 2.0), (0.4, None), (None, None)])
def test_weights_are_those_of_the_rule(mode: Any, low: Any, high: Any) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(0, 1.0, size).tolist() for size in (1, 7, 3, 12)]
    found = Correction(mode, low, high).weights(
        torch.tensor(np.concatenate(rows)), torch.tensor([len(row) for row in rows])
    )
    assert found.tolist() == pytest.approx(by_loops(rows, mode, low, high), rel=1e-6)


def test_what_the_engine_did_not_tell_has_weight_one() -> None:
    nan = float("nan")
    drawn = torch.tensor([-1.0, nan, nan, nan])
    sampled = torch.tensor([-0.5, -3.0, nan, -2.0])
    gap = Gap()
    length = torch.tensor([2, 2])
    weight = corrected(sampled, drawn, length, Correction("token_truncate", None, 3.0), gap)
    assert weight.tolist() == pytest.approx([math.exp(0.5), 1, 1, 1])
    assert Gap.figures([gap.row]) == pytest.approx(
        {
            "sampling/sampling_logp_difference/mean": 0.5,
            "sampling/sampling_logp_difference/max": 0.5,
            "sampling/sampling_logp_difference/corrected_mean": 0.5,
            "sampling/importance_sampling_ratio/min": math.exp(0.5),
            "sampling/importance_sampling_ratio/mean": math.exp(0.5),
            "sampling/importance_sampling_ratio/max": math.exp(0.5),
            "sampling/masked_share": 0.0,
        }
    )


def test_the_gap_is_over_all_parts_and_a_response_counts_once() -> None:
    gaps = [Gap(), Gap(), Gap()]
    how = Correction("sequence_mask", None, 2.0)
    corrected(
        torch.tensor([-1.0, -1.0]), torch.tensor([-1.1, -1.2]), torch.tensor([2]), how, gaps[0]
    )
    corrected(torch.tensor([-1.0]), torch.tensor([-2.0]), torch.tensor([1]), how, gaps[1])
    figures = list(Gap.figures([gap.row for gap in gaps]).values())
    share = math.exp(0.3)
    expected = [1.3 / 3, 1.0, 0.15, 0.0, share / 2, share, 0.5]  # the second response is left out
    assert figures == pytest.approx(expected, rel=1e-5)
    assert Gap.figures([Gap().row, Gap().row]) == {}


@pytest.mark.parametrize("mode", MODES)
def test_what_is_left_after_correction_is_weighed_by_the_weights(mode: Any) -> None:
    rng = np.random.default_rng(1)
    rows = [rng.normal(0, 0.5, size).tolist() for size in (2, 9, 4, 11)]
    gap, flat = Gap(), torch.tensor(np.concatenate(rows))
    length = torch.tensor([len(row) for row in rows])
    corrected(flat, torch.zeros_like(flat), length, Correction(mode, 0.3, 1.5), gap)
    weights = by_loops(rows, mode, 0.3, 1.5)
    sizes = np.abs(np.concatenate(rows))
    found = Gap.figures([gap.row])
    after = found["sampling/sampling_logp_difference/corrected_mean"]
    assert after == pytest.approx(np.average(sizes, weights=weights))
    firsts = np.cumsum([0, *map(len, rows[:-1])])
    counted = np.array(weights)[firsts] if mode.startswith("sequence") else np.array(weights)
    assert found["sampling/masked_share"] == pytest.approx((counted == 0).mean())
    assert (found["sampling/masked_share"] > 0) == mode.endswith("mask")


def test_where_all_is_left_out_nothing_is_told_of_what_remains() -> None:
    gap = Gap()
    corrected(torch.zeros(2), torch.full((2,), -2.0), torch.tensor([2]), Correction(), gap)
    found = Gap.figures([gap.row])
    assert found["sampling/masked_share"] == 1.0
    assert "sampling/sampling_logp_difference/corrected_mean" not in found


@pytest.mark.parametrize("mode", MODES)
def test_a_response_without_tokens_changes_nothing_wherever_it_lies(mode: Any) -> None:
    sampled, drawn = torch.tensor([-1.0, -0.5, -2.0, -1.0]), torch.tensor([-1.1, -0.9, -1.0, -1.5])
    how, found = Correction(mode), []
    for length in ([3, 1], [3, 1, 0], [0, 3, 0, 1, 0, 0]):
        gap = Gap()
        weight = corrected(sampled, drawn, torch.tensor(length), how, gap)
        found.append((weight.tolist(), Gap.figures([gap.row])))
    assert found == [found[0]] * 3


def test_the_correction_weighs_the_gain_and_not_the_divergence() -> None:
    logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    given = {
        "behaviour": logprob.detach(),
        "advantage": torch.tensor([1.0, -2.0]),
        "weight": torch.tensor([0.5, 0.5]),
        "clip_low": torch.full((2,), 0.2),
        "clip_high": torch.full((2,), 0.2),
        "reference": torch.tensor([-1.5, -1.0]),
    }
    plain = clipped_loss(logprob, LossInputs(**given), 0.1)
    weighed = clipped_loss(logprob, LossInputs(**given, correction=torch.tensor([0.0, 3.0])), 0.1)
    gain = 0.5 * (1.0 - 2.0)
    other = 0.5 * (0.0 - 6.0)
    assert float((weighed.loss - plain.loss).detach()) == pytest.approx(gain - other)
    (slope,) = torch.autograd.grad(weighed.loss, logprob)
    distance = given["reference"] - logprob.detach()
    divergence = 0.1 * 0.5 * (1.0 - distance.exp())  # of exp(d) - d - 1, where d falls with log pi
    expected = torch.tensor([0.0, 3.0]) * torch.tensor([-0.5, 1.0]) + divergence
    assert slope.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
