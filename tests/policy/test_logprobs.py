"""Log-probs of chosen tokens, and the one rule for the distribution that is sampled from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from given_tokens import sampling_logprob
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from dare.curriculum.arrays import keyed_rng
from dare.policy import logprobs
from dare.policy.logprobs import both_of, head_logprob
from dare_decoder.sampling import Sampling, keep_nucleus, sample_tokens


def selected_logprob(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Of logits that are there as a whole, as those of a head that is no plain layer."""
    return head_logprob(logits, None, None, targets, temperature)[0]


shapes = st.tuples(st.integers(1, 7), st.integers(2, 40), st.integers(0, 2**31))
temperatures = st.sampled_from([0.3, 0.6, 1.0, 1.7])


def random_logits(rows: int, vocabulary: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    logits = 3.0 * torch.randn(rows, vocabulary, generator=source)
    return logits, torch.randint(vocabulary, (rows,), generator=source)


def by_loops(logits: list[float], temperature: float, top_p: float, top_k: int) -> list[float]:
    """Probability of every token after temperature, top-k and nucleus, one token at a time."""
    scaled = [value / temperature for value in logits]
    ranked = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    if top_k:
        ranked = ranked[:top_k]
    mass = {token: math.exp(scaled[token] - scaled[ranked[0]]) for token in ranked}
    whole, so_far, kept = sum(mass.values()), 0.0, []
    for token in ranked:
        assume(abs(so_far - top_p) > 1e-5)  # there rounding decides, and either is right
        if kept and top_p < 1.0 and so_far >= top_p:
            break
        kept.append(token)
        so_far += mass[token] / whole
    total = sum(mass[token] for token in kept)
    return [mass[token] / total if token in kept else 0.0 for token in range(len(scaled))]


@given(shapes, temperatures)
@settings(max_examples=60, deadline=None)
def test_values_and_gradients_are_those_of_log_softmax(shape, temperature):
    logits, targets = random_logits(*shape)
    upstream = torch.randn(len(targets), generator=torch.Generator().manual_seed(1))
    mine = logits.clone().requires_grad_()
    plain = logits.double().requires_grad_()
    value = selected_logprob(mine, targets, temperature)
    expected = (plain / temperature).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    value.backward(upstream)
    expected.backward(upstream.double())
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(mine.grad.double(), plain.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_bfloat16_logits_lose_nothing_more(temperature):
    logits, targets = random_logits(9, 33, 5)
    mine = logits.bfloat16().requires_grad_()
    plain = mine.detach().float().requires_grad_()
    value = selected_logprob(mine, targets, temperature)
    expected = (plain / temperature).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    value.sum().backward()
    expected.sum().backward()
    assert value.dtype == torch.float32
    assert mine.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(mine.grad, plain.grad.bfloat16(), atol=1e-6, rtol=2**-7)


@pytest.mark.parametrize("elements", [1, 40, 41, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_change_nothing(monkeypatch, elements, dtype):
    logits, targets = random_logits(11, 20, 3)
    logits = logits.to(dtype)

    def everything() -> list[torch.Tensor]:
        leaf = logits.clone().requires_grad_()
        value = selected_logprob(leaf, targets, 0.6)
        (value * torch.arange(11)).sum().backward()
        return [value.detach(), leaf.grad, sampling_logprob(logits, targets, 0.6, 0.9, 7)]

    whole = everything()
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", elements)
    for part, expected in zip(everything(), whole, strict=True):
        assert torch.equal(part, expected)


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0], [80.0, 80.0, -80.0]], requires_grad=True)
    value = selected_logprob(logits, torch.tensor([1, 2]), 0.5)
    value.sum().backward()
    assert value.isfinite().all()
    assert logits.grad.isfinite().all()


@given(shapes, temperatures, st.sampled_from([0.1, 0.5, 0.95, 1.0]), st.integers(0, 45))
@settings(max_examples=120, deadline=None)
def test_sampling_logprob_is_the_nucleus_by_loops(shape, temperature, top_p, top_k):
    logits, _ = random_logits(*shape)
    for row in logits:
        expected = by_loops(row.tolist(), temperature, top_p, min(top_k, len(row)))
        every = torch.arange(len(row))
        found = sampling_logprob(row.expand(len(row), -1), every, temperature, top_p, top_k)
        assert found.exp().tolist() == pytest.approx(expected, abs=1e-5)
        assert [value == -math.inf for value in found.tolist()] == [p == 0.0 for p in expected]
        assert float(found.double().exp().sum()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("top_k", [1, 3, 12])
def test_a_token_outside_the_top_k_has_no_chance_whatever_the_margin(top_k):
    """Scoring takes rounding into account; the whole vocabulary's chances still sum to 1."""
    logits, _ = random_logits(1, 40, seed=top_k)
    every = torch.arange(40)
    sampling = Sampling(0.7, 1.0, top_k)
    _, found = both_of(logits.expand(40, -1), every, sampling, margin=1e-4, drawn=False)
    assert int(found.isfinite().sum()) == top_k
    assert float(found.double().exp().sum()) == pytest.approx(1.0, abs=1e-5)
    near = logits[0].sort(descending=True).indices[top_k]  # the first one outside
    _, found = both_of(logits, near[None], sampling, margin=10.0, drawn=False)
    assert found.isfinite().all()  # by less than the margin


def test_the_most_likely_token_always_stays():
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    for top_p in (1e-9, 0.5):
        kept = keep_nucleus(logits, top_p, 0)
        assert kept.isfinite().tolist() == [[False, True, False]]


def test_nothing_is_cut_without_nucleus_and_top_k():
    logits, targets = random_logits(5, 12, 0)
    full = selected_logprob(logits, targets, 0.7)
    torch.testing.assert_close(sampling_logprob(logits, targets, 0.7), full)
    torch.testing.assert_close(sampling_logprob(logits, targets, 0.7, 1.0, 12), full)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0, 1.0), Sampling(0.6, 0.95), Sampling(1.3, 0.8, 9), Sampling(1.0, 1.0, 4)],
)
def test_sampled_tokens_follow_exactly_that_distribution(sampling):
    logits, _ = random_logits(1, 25, 11)
    every = torch.arange(25)
    chance = sampling_logprob(
        logits.expand(25, -1), every, sampling.temperature, sampling.top_p, sampling.top_k
    )
    chance = chance.double().exp().numpy()
    draws = 20_000
    uniform = torch.from_numpy(keyed_rng(3, 0, "chi").random(draws, dtype=np.float32))
    tokens = sample_tokens(logits.expand(draws, -1), uniform, sampling)
    counts = np.bincount(tokens.numpy(), minlength=25)
    assert counts[chance == 0].sum() == 0
    likely = chance * draws >= 5
    seen = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(chance[likely], chance[~likely].sum()) * draws
    keep = wanted > 0
    assert stats.chisquare(seen[keep], wanted[keep], sum_check=False).pvalue > 1e-3
    # A regular grid of numbers leaves no room for luck: each token gets its share of it.
    grid = (torch.arange(draws) + 0.5) / draws
    exact = np.bincount(sample_tokens(logits.expand(draws, -1), grid, sampling), minlength=25)
    assert np.abs(exact - chance * draws).max() <= 2


@given(shapes, st.sampled_from([Sampling(0.6, 0.95), Sampling(1.0, 0.5, 3), Sampling(0.1, 1.0)]))
@settings(max_examples=60, deadline=None)
def test_the_ends_of_the_unit_interval_stay_inside_the_nucleus(shape, sampling):
    logits, _ = random_logits(*shape)
    for edge in (0.0, 2.0**-24, 1.0 - 2.0**-24):
        tokens = sample_tokens(logits, torch.full((len(logits),), edge), sampling)
        inside = sampling_logprob(
            logits, tokens, sampling.temperature, sampling.top_p, sampling.top_k
        )
        assert inside.isfinite().all()


def test_temperature_zero_is_greedy():
    logits, _ = random_logits(6, 15, 2)
    uniform = torch.linspace(0, 0.99, 6)
    assert torch.equal(sample_tokens(logits, uniform, Sampling(0.0)), logits.argmax(-1))


def test_without_triton_log_probs_are_plain_torchs_and_a_line_says_so(monkeypatch, caplog):
    def gone(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(logprobs.importlib, "import_module", gone)
    assert logprobs._triton.__wrapped__() is None  # a GPU's cached answer stays what it is
    assert "plain torch" in caplog.text
    assert "C compiler" in caplog.text
