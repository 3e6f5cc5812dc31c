"""Every preset is the same trainer: it trains, resumes bit for bit and counts what it generates."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from dare.config import preset_names
from dare.policy.score import mean_entropy, score
from dare.training.config import DareConfig
from dare_decoder import Sampling

SMALL: dict[str, Any] = {
    "current-fr": {"estimator.max_probes": 2},
    "dapo": {"estimator.max_probes": 3},
    "greso": {"estimator.max_probes": 3},
    "paper-release": {"prompts_per_step": 3},  # R is not filled
    "dots": {"estimator.references": 4, "medium.group_size": 4},
    "edco": {"estimator.candidates": 6},
    "llm-judge": {"estimator.candidates": 6},
}
TIMING = ("seconds", "time", "memory_mb")


def made(folder: Path, preset: str, **changes: Any) -> Any:
    curriculum = dict(SMALL.get(preset, {}))
    if not preset.startswith(("dare", "paper")):
        curriculum["cold_start.references"] = 0
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, **changes}
    return tiny.trainer(folder, preset=preset, curriculum=curriculum, **settings)


@pytest.mark.parametrize("preset", preset_names())
def test_a_resumed_run_is_the_uninterrupted_one(preset: str, tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", preset)
    whole.train()
    half = made(tmp_path / "half", preset, max_steps=2)
    half.train()
    again = made(tmp_path / "half", preset)
    again.train(resume_from_checkpoint=True)
    for name in ("selections.jsonl", "metrics.jsonl"):
        first, second = (tiny.lines(tmp_path / run / name) for run in ("whole", "half"))
        assert len(first) == len(second) == 4
        for one, other in zip(first, second, strict=True):
            assert tiny.without(one, TIMING) == tiny.without(other, TIMING)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("preset", ["edco", "llm-judge"])
def test_what_an_estimator_generates_counts(preset: str, tmp_path: Path) -> None:
    trainer = made(tmp_path, preset, max_steps=2)
    trainer.train()
    lines = tiny.lines(tmp_path / "metrics.jsonl")
    own = sum(line["tokens"]["generated"] for line in lines)
    extra = sum(line["tokens"]["refreshed"] for line in lines)
    assert extra > 0
    assert trainer.generated_tokens > own + extra  # and what the first draw was based on


@pytest.mark.parametrize("preset", ["dapo", "greso"])
def test_groups_that_are_dropped_count_and_those_that_are_kept_are_shown(
    preset: str, tmp_path: Path
) -> None:
    trainer = made(tmp_path, preset, max_steps=3)
    written: list[int] = []
    rollouts = trainer.collector.rollouts

    def watched(*words: Any, **named: Any) -> Any:
        found = rollouts(*words, **named)
        written.append(int(found.length_R.sum()))
        return found

    trainer.collector.rollouts = watched
    trainer.train()
    lines = tiny.lines(tmp_path / "metrics.jsonl")
    assert len(written) > 3  # probes and steps
    assert trainer.generated_tokens == sum(written)
    assert sum(line["tokens"]["generated"] for line in lines) == sum(written)
    assert any(line["tokens"]["trained"] < line["tokens"]["generated"] for line in lines)
    assert all(line["length"] > 0 and 0 < line["reward"] < 1 for line in lines)
    assert {sample["step"] for sample in tiny.lines(tmp_path / "samples.jsonl")} == {0, 1, 2}


def test_the_judge_gets_its_question_and_the_policy_writes_the_reply(tmp_path: Path) -> None:
    trainer = made(tmp_path, "llm-judge", max_steps=1)
    trainer._start(None)
    rows = np.arange(4)
    replies = trainer.curriculum.services.ask(rows)
    assert len(replies.texts) == 4
    assert 0 < replies.tokens <= 4 * 32
    again = trainer.curriculum.services.ask(rows)
    assert replies == again  # keyed by (seed, step, purpose)


def test_the_entropy_is_that_of_the_prefix_which_the_policy_wrote(tmp_path: Path) -> None:
    trainer = made(tmp_path, "edco", max_steps=1)
    trainer._start(None)
    generate, written = trainer.policy.generator.generate, []

    def watched(request: Any, sampling: Sampling) -> Any:
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 1.0, 0)
        assert request.max_tokens_R.tolist() == [64] * 5
        found = generate(request, sampling)
        written.extend(zip(request.prompts, found.tokens, strict=True))
        return found

    trainer.policy.generator.generate = watched
    rows = np.array([7, 0, 3, 11, 4])
    values, tokens = trainer.curriculum.services.entropy(rows)
    assert tokens == sum(len(response) for _, response in written) > 0
    model = tiny.policy().double()
    for row, (prompt, response), value in zip(rows, written, values, strict=True):
        assert prompt.tolist() == tiny.encode(trainer.store.records[row]["prompt"]).tolist()
        assert 0 < len(response) <= 64
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
        places = range(len(prompt) - 1, len(prompt) + len(response) - 1)
        chances = [(logits[place] / 0.6).softmax(-1).tolist() for place in places]
        by_hand = [-sum(p * math.log(p) for p in chance if p > 0) for chance in chances]
        assert value == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-5)


def test_entropy_against_the_plain_formula() -> None:
    model = tiny.policy()
    prompts = [tiny.encode("1+2="), tiny.encode("12+3=")]
    responses = [np.array([5, 6, 7]), np.array([8, 9, 10, 11, 1])]
    found = mean_entropy(model, prompts, responses, 0.6, pad_id=tiny.PAD)
    for prompt, response, value in zip(prompts, responses, found, strict=True):
        ids = torch.tensor([[*prompt, *response]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        chance = (logits.double() / 0.6).softmax(-1)
        plain = float(-(chance * chance.log()).sum(-1).mean())
        assert value == pytest.approx(plain, abs=1e-5)
    assert score(model, prompts, responses, Sampling(1.0, 1.0), pad_id=tiny.PAD).total.shape == (2,)


@pytest.mark.parametrize("preset", preset_names())
def test_presets_of_the_paper_sample_as_it_does_and_others_at_one(preset: str) -> None:
    papers = preset.startswith("paper")
    made = DareConfig(preset=preset, use_cpu=True)
    assert (made.temperature, made.top_p) == ((0.6, 0.95) if papers else (1.0, 1.0))
    again = replace(DareConfig(preset=preset, temperature=1.0, use_cpu=True))
    assert (again.temperature, again.top_p) == (1.0, 0.95 if papers else 1.0)
