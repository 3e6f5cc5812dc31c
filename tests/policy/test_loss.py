"""The clipped objective, against one written out token by token."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dare.policy.loss import LossInputs, clipped_loss

numbers = st.floats(-2.0, 0.0)
tokens = st.lists(
    st.tuples(
        numbers,  # log pi
        numbers,  # log behaviour
        st.integers(-300, 300).map(lambda n: n / 100),  # advantage
        st.sampled_from([0.0, 0.01, 0.3]),  # weight
        st.sampled_from([0.1, 0.2]),  # eps-
        st.sampled_from([0.2, 0.6]),  # eps+
        numbers,  # log reference
    ),
    min_size=1,
    max_size=8,
)


def inputs_of(rows, *, reference=True):
    columns = [torch.tensor(column, dtype=torch.float32) for column in zip(*rows, strict=True)]
    logprob, behaviour, advantage, weight, low, high, ref = columns
    given = LossInputs(behaviour, advantage, weight, low, high, ref if reference else None)
    return logprob.requires_grad_(), given


@given(tokens, st.sampled_from([0.0, 0.1]))
@settings(max_examples=200, deadline=None)
def test_loss_and_gradient_are_the_written_out_ones(rows, beta):
    logprob, given_inputs = inputs_of(rows)
    output = clipped_loss(logprob, given_inputs, beta)
    output.loss.backward()
    loss = clipped = kl = 0.0
    slopes = []
    for lp, old, advantage, weight, low, high, ref in rows:
        ratio = math.exp(lp - old)
        # At a bound the slope jumps, and rounding decides on which side a token is.
        assume(abs(ratio - (1 - low)) > 1e-5)
        assume(abs(ratio - (1 + high)) > 1e-5)
        bounded = min(max(ratio, 1 - low), 1 + high)
        stopped = bounded * advantage < ratio * advantage
        gain = bounded * advantage if stopped else ratio * advantage
        slope = 0.0 if stopped else ratio * advantage
        gap = ref - lp
        if beta:
            gain -= beta * (math.exp(gap) - gap - 1)
            slope -= beta * (1 - math.exp(gap))
            kl += weight * (math.exp(gap) - gap - 1)
        loss -= weight * gain
        clipped += weight * stopped
        slopes.append(-weight * slope)
    assert output.loss.item() == pytest.approx(loss, abs=1e-5)
    assert logprob.grad.tolist() == pytest.approx(slopes, abs=1e-5)
    assert float(output.kl) == pytest.approx(kl, abs=1e-5)
    assert float(output.clipped) == pytest.approx(clipped, abs=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.5, 1.0, True),  # below 1.6: an easy prompt's right answer may still grow
        (1.7, 1.0, False),
        (1.7, -1.0, True),  # a wrong answer that became likelier is always pushed back
        (0.5, 1.0, True),
        (0.5, -1.0, False),
        (0.9, -1.0, True),
    ],
)
def test_only_steps_that_go_too_far_in_the_wanted_direction_are_stopped(ratio, advantage, moves):
    logprob, given_inputs = inputs_of([(math.log(ratio), 0.0, advantage, 1.0, 0.2, 0.6, 0.0)])
    output = clipped_loss(logprob, given_inputs)
    output.loss.backward()
    assert (float(logprob.grad) != 0.0) is moves
    assert float(output.clipped) == float(not moves)


def test_at_ratio_1_the_gradient_is_the_policy_gradient():
    rows = [(-0.7, -0.7, 1.5, 0.25, 0.2, 0.2, -0.7), (-1.1, -1.1, -0.5, 0.5, 0.2, 0.2, -1.1)]
    logprob, given_inputs = inputs_of(rows)
    clipped_loss(logprob, given_inputs, 0.1).loss.backward()
    assert logprob.grad.tolist() == pytest.approx([-0.375, 0.25])


def test_the_divergence_is_never_negative_and_0_where_both_agree():
    rows = [(-0.1 * i, 0.0, 0.0, 1.0, 0.2, 0.2, -0.7) for i in range(15)]
    for row in rows:
        logprob, given_inputs = inputs_of([row])
        divergence = float(clipped_loss(logprob, given_inputs, 1.0).kl)
        assert divergence >= 0.0
        assert (divergence < 1e-6) == (row[0] == pytest.approx(row[-1]))


def test_without_beta_the_reference_is_not_read():
    row = (-0.5, -0.4, 1.0, 1.0, 0.2, 0.2, math.nan)
    logprob, given_inputs = inputs_of([row])
    assert math.isfinite(clipped_loss(logprob, given_inputs, 0.0).loss.item())
    logprob, given_inputs = inputs_of([row], reference=False)
    assert float(clipped_loss(logprob, given_inputs, 0.1).kl) == 0.0


def test_a_token_of_weight_0_has_no_gradient():
    rows = [(-0.5, -0.4, 1.0, 0.0, 0.2, 0.2, -1.0), (-0.5, -0.4, 1.0, 1.0, 0.2, 0.2, -1.0)]
    logprob, given_inputs = inputs_of(rows)
    clipped_loss(logprob, given_inputs, 0.1).loss.backward()
    assert float(logprob.grad[0]) == 0.0
    assert float(logprob.grad[1]) != 0.0


# --- variants -------------------------------------------------------------------------------------


@given(tokens, st.sampled_from([0.0, 0.1]))
@settings(max_examples=100, deadline=None)
def test_cispo_weighs_the_log_prob_by_a_clipped_ratio(rows, beta):
    logprob, given_inputs = inputs_of(rows)
    output = clipped_loss(logprob, given_inputs, beta, loss_type="cispo")
    output.loss.backward()
    loss = clipped = 0.0
    slopes = []
    for lp, old, advantage, weight, _, high, ref in rows:
        ratio = math.exp(lp - old)
        assume(abs(ratio - (1 + high)) > 1e-5)
        constant = min(ratio, 1 + high)  # no lower bound, and no gradient of its own
        gap = ref - lp
        loss -= weight * (constant * advantage * lp - beta * (math.exp(gap) - gap - 1))
        slopes.append(-weight * (constant * advantage - beta * (1 - math.exp(gap))))
        clipped += weight * (ratio > 1 + high)
    assert output.loss.item() == pytest.approx(loss, abs=1e-4)
    assert logprob.grad.tolist() == pytest.approx(slopes, abs=1e-4)
    assert float(output.clipped) == pytest.approx(clipped, abs=1e-5)


@given(st.lists(st.lists(st.tuples(numbers, numbers), max_size=4), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_a_sequence_has_the_geometric_mean_of_its_tokens_ratios(rollouts):
    """Rollouts without a token have no ratio and do no harm."""
    flat = [pair for rollout in rollouts for pair in rollout]
    assume(flat)
    rows = [(lp, old, 1.5, 0.25, 0.2, 0.3, 0.0) for lp, old in flat]
    logprob, inputs = inputs_of(rows)
    length = torch.tensor([len(rollout) for rollout in rollouts])
    output = clipped_loss(logprob, replace(inputs, length=length), level="sequence")
    output.loss.backward()
    loss, slopes = 0.0, []
    for rollout in filter(None, rollouts):
        ratio = math.exp(sum(lp - old for lp, old in rollout) / len(rollout))
        assume(abs(ratio - 1.3) > 1e-5)
        loss -= 0.25 * len(rollout) * min(ratio, 1.3) * 1.5
        # Each token moves the ratio of all: 1 / n of it, n times.
        slopes += [-0.25 * ratio * 1.5 * (ratio < 1.3)] * len(rollout)
    assert output.loss.item() == pytest.approx(loss, abs=1e-4)
    assert logprob.grad.tolist() == pytest.approx(slopes, abs=1e-4)
