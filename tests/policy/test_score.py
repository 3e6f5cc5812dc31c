"""Scoring: one path for behaviour, current and reference policy, whatever the batches are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from given_tokens import sampling_logprob

import tiny
from dare.curriculum.estimators.paper import effective_sample_size, weights
from dare.policy.generate import GenerationRequest, TransformersGenerator
from dare.policy.score import score
from dare_decoder import Sampling

SAMPLING = Sampling(0.6, 0.95)
PROMPTS = [tiny.encode("+".join(str(d) for d in range(n + 1)) + "=") for n in range(6)]


def sampled(model, sampling=SAMPLING, *, each=8, longest=10, end=(tiny.END,), prompts=PROMPTS):
    """Prompts (one a rollout) and responses that the model wrote itself."""
    owner = np.repeat(np.arange(len(prompts)), each)
    request = GenerationRequest(
        prompts=prompts,
        prompt_R=owner,
        max_tokens_R=np.full(len(owner), longest),
        noise_R=np.arange(len(owner)),
        seed=0,
        step=0,
    )
    generator = TransformersGenerator(lambda: model, pad_id=tiny.PAD, end_ids=end)
    return [prompts[row] for row in owner], generator.generate(request, sampling).tokens


@torch.no_grad()
def row_by_row(model, prompts, responses, sampling):
    """Per-token log-probs and totals from one unpadded forward pass a rollout."""
    tokens, totals = [], []
    for prompt, response in zip(prompts, responses, strict=True):
        ids = torch.from_numpy(np.concatenate([prompt, response]))[None]
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double()
        chosen = torch.from_numpy(response)[:, None]
        tokens.append((logits / sampling.temperature).log_softmax(-1).gather(-1, chosen)[:, 0])
        nucleus = sampling_logprob(logits, chosen[:, 0], sampling.temperature, sampling.top_p)
        totals.append(float(nucleus.double().sum()))
    return torch.cat(tokens).numpy(), np.array(totals)


@pytest.fixture(scope="module")
def model():
    return tiny.policy()


@pytest.mark.parametrize("sampling", [SAMPLING, Sampling(1.0, 1.0)])
def test_scores_are_those_of_one_plain_pass_a_row(model, sampling):
    prompts, responses = sampled(model, sampling)
    found = score(model, prompts, responses, sampling, pad_id=tiny.PAD)
    tokens, totals = row_by_row(model, prompts, responses, sampling)
    assert np.abs(found.logprobs - tokens).max() < 1e-5
    assert np.abs(found.total - totals).max() < 1e-5


@pytest.mark.parametrize("max_batch_tokens", [1, 50, 200])
def test_batches_and_order_change_nothing(model, max_batch_tokens):
    prompts, responses = sampled(model)
    whole = score(model, prompts, responses, SAMPLING, pad_id=tiny.PAD)
    order = np.random.default_rng(0).permutation(len(prompts))
    shuffled = score(
        model,
        [prompts[row] for row in order],
        [responses[row] for row in order],
        SAMPLING,
        pad_id=tiny.PAD,
        max_batch_tokens=max_batch_tokens,
    )
    cuts = np.cumsum([len(response) for response in responses])[:-1]
    pieces = np.split(whole.logprobs, cuts)
    assert np.abs(shuffled.total - whole.total[order]).max() < 1e-5
    expected = np.concatenate([pieces[row] for row in order])
    assert np.abs(shuffled.logprobs - expected).max() < 1e-5


def test_without_drift_every_ratio_is_1_and_the_ess_is_k(model):
    prompts, responses = sampled(model, each=16)
    behaviour = score(model, prompts, responses, SAMPLING, pad_id=tiny.PAD).total
    now = score(model, prompts, responses, SAMPLING, pad_id=tiny.PAD, max_batch_tokens=64).total
    ratio = now - behaviour
    assert np.abs(ratio).max() < 1e-3
    owner = np.repeat(np.arange(len(PROMPTS)), 16)
    ess = effective_sample_size(weights(ratio, 4.0), owner, len(PROMPTS))
    assert np.abs(ess - 16).max() < 1e-3


def test_a_token_outside_the_nucleus_makes_the_total_minus_infinity_and_nothing_else(model):
    strange = np.array([tiny.VOCABULARY["Z"], tiny.END])
    found = score(model, [PROMPTS[0]], [strange], SAMPLING, pad_id=tiny.PAD)
    assert found.total[0] == -np.inf
    assert np.isfinite(found.logprobs).all()


def test_a_process_may_have_nothing_to_score(model):
    none = score(model, [], [], SAMPLING, pad_id=tiny.PAD)
    assert len(none.total) == len(none.logprobs) == 0


def test_the_mode_of_the_model_is_put_back(model):
    prompts, responses = sampled(model, each=1)
    try:
        for training in (True, False):
            model.train(training)
            score(model, prompts, responses, SAMPLING, pad_id=tiny.PAD)
            assert model.training is training
    finally:
        model.eval()
