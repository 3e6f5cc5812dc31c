"""The two decoders against the plain forward pass; graphs are checked on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from dare.policy.decode import GrowingDecoder, StaticDecoder, as_is, can_capture, prefill
from dare.policy.generate import GenerationRequest, TransformersGenerator
from dare.policy.score import Sampling


def start(model, kind: str):
    """Three prompts of different lengths, seven rows of them, and the decoder after the prompts."""
    prompts = [tiny.encode("1+2="), tiny.encode("3+4+5="), tiny.encode("7=")]
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((3, width), tiny.PAD)
    mask = torch.zeros(3, width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, width - len(prompt) :] = 1
    copies = torch.tensor([0, 0, 1, 1, 1, 2, 2])
    logits, cache = prefill(model, ids, mask)
    if kind == "growing":
        decoder = GrowingDecoder(model, cache, mask, copies)
    else:
        decoder = StaticDecoder(model, cache, mask, copies, 16, as_is)
    return [list(prompts[place]) for place in copies.tolist()], logits[copies], decoder


@pytest.mark.parametrize("kind", ["growing", "static"])
def test_every_step_has_the_logits_of_the_whole_sequence(kind: str) -> None:
    model = tiny.policy()
    with torch.inference_mode():
        follow(model, kind)


def follow(model, kind: str) -> None:
    texts, logits, decoder = start(model, kind)
    rng = np.random.default_rng(0)
    leaving = {3: [0, 2, 3, 5, 6], 5: [1, 3], 8: [0]}  # rows that stay, by step
    for step in range(11):
        for row, text in zip(logits, texts, strict=True):
            plain = model(input_ids=torch.tensor([text])).logits[0, -1]
            assert torch.allclose(row, plain, atol=2e-5)
        if step in leaving:
            keep = torch.tensor(leaving[step])
            decoder.keep(keep)
            texts = [texts[row] for row in leaving[step]]
        token = torch.from_numpy(rng.integers(3, 20, len(texts)))
        texts = [[*text, int(new)] for text, new in zip(texts, token, strict=True)]
        logits = decoder.advance(token)


def test_a_model_on_the_cpu_has_no_graph() -> None:
    assert not can_capture(tiny.policy())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_sample_what_the_growing_cache_does() -> None:
    model = tiny.policy().cuda()
    prompts = [tiny.encode(f"{a}+{b}=") for a in range(4) for b in range(4)]
    rows = np.repeat(np.arange(16), 8)
    request = GenerationRequest(prompts, rows, np.full(128, 24), np.arange(128), 0, 0)
    found = []
    for graphs in (False, True):
        generator = TransformersGenerator(
            lambda: model, pad_id=tiny.PAD, end_ids=[tiny.END], graphs=graphs
        )
        found.append(generator.generate(request, Sampling(1.0, 1.0)))
    same = [np.array_equal(a, b) for a, b in zip(found[0].tokens, found[1].tokens, strict=True)]
    assert np.mean(same) > 0.98  # a token on the edge of two may fall either way
