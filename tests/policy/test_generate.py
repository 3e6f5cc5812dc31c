"""Generation: a rollout depends on its prompt, budget and noise, not on its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import tiny
from dare.curriculum.rollouts import Finish
from dare.policy.generate import GenerationRequest, TransformersGenerator
from dare.policy.score import score
from dare_decoder import Sampling

SAMPLING = Sampling(1.0, 0.95)
PROMPTS = [tiny.encode("+".join(str(d) for d in range(n + 1)) + "=") for n in range(6)]


def request(owner, budget, noise=None, *, step=0, purpose="generate"):
    owner = np.asarray(owner)
    return GenerationRequest(
        prompts=PROMPTS,
        prompt_R=owner,
        max_tokens_R=np.broadcast_to(np.asarray(budget), owner.shape).copy(),
        noise_R=np.arange(len(owner)) if noise is None else np.asarray(noise),
        seed=7,
        step=step,
        purpose=purpose,
    )


@pytest.fixture(scope="module")
def model():
    return tiny.policy()


@pytest.fixture(scope="module")
def generate(model):
    def run(asked, sampling=SAMPLING, *, end=(tiny.END,), max_rows=512):
        generator = TransformersGenerator(
            lambda: model, pad_id=tiny.PAD, end_ids=end, max_rows=max_rows
        )
        return generator.generate(asked, sampling)

    return run


OWNER = np.repeat(np.arange(6), 4)
BUDGET = np.tile([3, 12, 6, 1], 6)


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("max_rows", [1, 5, 24])
def test_a_rollout_does_not_depend_on_its_batch(generate, max_rows):
    whole = generate(request(OWNER, BUDGET))
    parts = generate(request(OWNER, BUDGET), max_rows=max_rows)
    assert same(whole.tokens, parts.tokens)
    assert np.array_equal(whole.finish_R, parts.finish_R)


def test_nor_on_the_order(generate):
    whole = generate(request(OWNER, BUDGET))
    order = np.random.default_rng(0).permutation(len(OWNER))
    shuffled = generate(request(OWNER[order], BUDGET[order], order), max_rows=7)
    assert same(shuffled.tokens, [whole.tokens[row] for row in order])
    assert np.array_equal(shuffled.finish_R, whole.finish_R[order])


def test_left_padding_changes_nothing(generate):
    whole = generate(request(OWNER, BUDGET))
    for row in range(0, len(OWNER), 5):
        alone = generate(request(OWNER[[row]], BUDGET[[row]], [row]))
        assert np.array_equal(alone.tokens[0], whole.tokens[row])


def test_step_purpose_and_noise_each_give_other_rollouts(generate):
    base = generate(request(OWNER, 12))
    for other in (
        request(OWNER, 12, step=1),
        request(OWNER, 12, purpose="evaluate"),
        request(OWNER, 12, np.arange(24) + 100),
    ):
        assert not same(base.tokens, generate(other).tokens)


def test_every_row_keeps_to_its_budget_and_says_why_it_ended(generate):
    made = generate(request(np.repeat(np.arange(6), 20), np.tile([1, 2, 5, 12], 30)))
    reasons = set()
    for tokens, finish, budget in zip(
        made.tokens, made.finish_R, np.tile([1, 2, 5, 12], 30), strict=True
    ):
        ended = tokens[-1] == tiny.END
        assert 1 <= len(tokens) <= budget
        assert (tokens[:-1] != tiny.END).all()
        assert Finish(finish) is (Finish.STOP if ended else Finish.LENGTH)
        if not ended:
            assert len(tokens) == budget
        reasons.add((bool(ended), len(tokens) == budget))
    assert {(True, False), (False, True), (True, True)} == reasons


def test_a_shorter_budget_gives_the_beginning_of_the_longer_rollout(generate):
    long, short = generate(request(OWNER, 12)), generate(request(OWNER, 4))
    for whole, part in zip(long.tokens, short.tokens, strict=True):
        assert np.array_equal(whole[:4], part)


def test_any_of_several_end_tokens_ends_a_response(generate):
    ends = (tiny.END, tiny.VOCABULARY["3"])
    made = generate(request(np.repeat(np.arange(6), 10), 12), end=ends)
    last = [int(tokens[-1]) for tokens in made.tokens]
    assert set(ends) <= set(last)
    for tokens, finish in zip(made.tokens, made.finish_R, strict=True):
        assert not np.isin(tokens[:-1], ends).any()
        assert (finish == Finish.STOP) == (tokens[-1] in ends)


def test_greedy_is_that_of_transformers(model, generate):
    made = generate(request(np.arange(6), 12), Sampling(0.0, 1.0))
    for prompt, tokens in zip(PROMPTS, made.tokens, strict=True):
        ids = torch.from_numpy(prompt)[None]
        expected = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=12,
        )[0, len(prompt) :]
        assert tokens.tolist() == expected.tolist()


@torch.no_grad()
def test_first_tokens_follow_the_models_distribution(model, generate):
    count = 3000
    made = generate(request(np.full(count, 2), 1), Sampling(0.8, 1.0))
    logits = model(input_ids=torch.from_numpy(PROMPTS[2])[None]).logits[0, -1]
    chance = (logits / 0.8).double().softmax(-1).numpy()
    counts = np.bincount(np.concatenate(made.tokens), minlength=len(chance))
    likely = chance * count >= 5
    seen = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(chance[likely], chance[~likely].sum()) * count
    assert stats.chisquare(seen, wanted, sum_check=False).pvalue > 1e-3


def test_no_rollout_leaves_the_nucleus(model, generate):
    made = generate(request(np.repeat(np.arange(6), 30), 12))
    prompts = [PROMPTS[row] for row in np.repeat(np.arange(6), 30)]
    assert np.isfinite(score(model, prompts, made.tokens, SAMPLING, pad_id=tiny.PAD).total).all()


def test_nothing_asked_nothing_made(generate):
    made = generate(request(np.empty(0, np.int64), np.empty(0, np.int64)))
    assert made.tokens == []
    assert len(made.finish_R) == 0


def test_the_mode_of_the_model_is_put_back(model, generate):
    try:
        for training in (True, False):
            model.train(training)
            generate(request([0], 2))
            assert model.training is training
    finally:
        model.eval()
