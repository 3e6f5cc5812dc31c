from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from policies import SETTINGS, disturb, model, policy, request

import tiny
from dare.errors import InvalidInput
from dare.policy import vllm as ours
from dare.policy.generate import GeneratorFailed
from dare.policy.policy import Policy
from dare.runs.checkpoint import newest
from dare.training import DareTrainer
from dare_decoder.sampling import Sampling, keep_nucleus

GREEDY, DRAWN = Sampling(0.0, 1.0, 0), Sampling(0.6, 0.95, 0)


@pytest.fixture
def made() -> Iterator[Policy]:
    found = policy()
    yield found
    found.close()


def rows(found: Any) -> list[list[int]]:
    return [row.tolist() for row in found.tokens]


def test_greedy_responses_are_those_of_transformers(made: Policy) -> None:
    own = Policy(made.module, made.tokenizer)
    assert rows(made.generate(request(), GREEDY)) == rows(own.generate(request(), GREEDY))
    disturb(made.module, 0.05)
    made.updated()
    changed = rows(made.generate(request(), GREEDY))
    assert changed == rows(own.generate(request(), GREEDY))
    assert made.generator.gap < 1e-4  # type: ignore[attr-defined]


def test_budgets_are_exact_and_ends_are_told(made: Policy) -> None:
    asked = request(prompts=6, group=8)
    found = made.generate(asked, Sampling(1.0, 1.0, 0))
    for tokens, budget, finish in zip(
        found.tokens, asked.max_tokens_R, found.finish_R, strict=True
    ):
        ended = int(tokens[-1]) == tiny.END
        assert len(tokens) <= budget
        assert ended == (finish == 0)
        assert ended or len(tokens) == budget
        assert tiny.END not in tokens[:-1]
    assert 0 < np.mean(found.finish_R) < 1


def test_a_rollout_depends_on_neither_order_nor_company(made: Policy) -> None:
    asked = request()
    whole = rows(made.generate(asked, DRAWN))
    order = np.random.default_rng(0).permutation(len(whole))
    other = replace(
        asked,
        prompt_R=asked.prompt_R[order],
        max_tokens_R=asked.max_tokens_R[order],
        noise_R=asked.noise_R[order],
    )
    assert rows(made.generate(other, DRAWN)) == [whole[row] for row in order]
    half = order[:5]
    some = replace(
        asked,
        prompt_R=asked.prompt_R[half],
        max_tokens_R=asked.max_tokens_R[half],
        noise_R=asked.noise_R[half],
    )
    assert rows(made.generate(some, DRAWN)) == [whole[row] for row in half]
    assert rows(made.generate(replace(asked, step=6), DRAWN)) != whole
    group = [whole[row] for row in range(3, 16, 4)]
    assert len({tuple(row) for row in group}) == len(group)  # of one group, each its own


def test_the_engine_tells_the_log_probs_it_drew_by(made: Policy) -> None:
    asked = replace(request(), logprobs=True)
    found = made.generate(asked, DRAWN)
    prompts = [asked.prompts[place] for place in asked.prompt_R]
    own = made.score(prompts, found.tokens, DRAWN, drawn=True).sampled
    assert found.logprobs is not None
    np.testing.assert_allclose(np.concatenate(found.logprobs), own, atol=1e-4)
    assert made.generate(replace(asked, logprobs=False), DRAWN).logprobs is None


def test_many_draws_have_the_policys_frequencies(made: Policy) -> None:
    count, prompt = 4000, tiny.encode("1+1=")
    asked = request(prompts=1, group=count, longest=1)
    asked = replace(asked, prompts=[prompt])
    sampling = Sampling(0.8, 0.9, 20)
    drawn = [row[0] for row in rows(made.generate(asked, sampling))]
    with torch.no_grad():
        logits = made.module(torch.from_numpy(prompt)[None]).logits[:, -1] / sampling.temperature
    chance = keep_nucleus(logits, sampling.top_p, sampling.top_k).softmax(-1)[0].numpy()
    share = np.bincount(drawn, minlength=len(chance)) / count
    assert share[chance == 0].sum() == 0
    assert np.abs(share - chance).max() < 4 * np.sqrt(chance.max() / count)


def test_a_corrupted_transfer_stops_the_run(made: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    made.generate(request(), GREEDY)
    sent = ours.weights_of

    def corrupted(*given: Any) -> Iterator[Any]:
        for name, value in sent(*given):
            yield name, value + 0.1 if "layers.1.mlp.down_proj" in name else value

    monkeypatch.setattr(ours, "weights_of", corrupted)
    made.updated()
    with pytest.raises(GeneratorFailed, match="does not have the policy's weights"):
        made.generate(request(), GREEDY)


def test_a_transfer_that_did_not_happen_is_noticed(
    made: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.generate(request(), GREEDY)
    disturb(made.module, 0.02)
    made.updated()
    monkeypatch.setattr(ours, "weights_of", lambda *_: iter(()))
    with pytest.raises(GeneratorFailed, match="differ by"):
        made.generate(request(), GREEDY)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_that_is_left_behind_by_small_updates_is_noticed(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights move by 1e-4, as of a run, which is far below the gap that is allowed: `float32`
    weights, and an engine that rounds them to its own dtype."""
    asked = request(prompts=4, group=1, longest=1)
    asked = replace(asked, prompts=[np.resize(one, 64) for one in asked.prompts])
    made = policy(made=model(), precision=None if dtype == torch.float32 else dtype)
    generator: Any = made.generator
    steps: list[int] = []

    def draw_and_update(times: int) -> None:
        for _ in range(times):
            made.generate(asked, GREEDY)
            disturb(made.module, 1e-4, len(steps))
            made.updated()
            steps.append(len(steps))

    try:
        draw_and_update(6)
        assert generator._staleness.evidence < 5
        monkeypatch.setattr(ours, "weights_of", lambda *_: iter(()))
        with pytest.raises(GeneratorFailed, match="still has the weights of before"):
            draw_and_update(30)
        assert generator.gap < generator._largest_gap
        assert len(steps) < 6 + (4 if dtype == torch.float32 else 20)
    finally:
        made.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_are_merged_and_the_dtype_is_the_policys(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    adapted = get_peft_model(
        model().to(dtype),
        LoraConfig(r=4, target_modules=["q_proj", "down_proj"], modules_to_save=["lm_head"]),
    )
    before = {name: weight.clone() for name, weight in adapted.named_parameters()}
    made = policy(made=adapted)
    try:
        made.generate(request(), GREEDY)
        disturb(adapted, 0.05)
        moved = {name: weight.clone() for name, weight in adapted.named_parameters()}
        made.updated()
        found = made.generate(request(), GREEDY)
        engine = made.generator._engine._llm.llm_engine  # type: ignore[attr-defined]
        assert engine.model_config.dtype == dtype
    finally:
        made.close()
    assert any(not torch.equal(before[name], moved[name]) for name in before)
    for name, weight in adapted.named_parameters():
        assert torch.equal(weight, moved[name])  # merging leaves nothing behind
    if dtype == torch.float32:
        own = Policy(adapted, tiny.tokenizer()).generate(request(), GREEDY)
        assert rows(found) == rows(own)


def test_an_engine_that_slept_draws_as_before_and_after_an_update_by_the_new_weights() -> None:
    """The calls of sleep mode; on a CPU there is no memory to give back."""
    made = policy(replace(SETTINGS, enable_sleep_mode=True))
    own = Policy(made.module, made.tokenizer)
    try:
        for size in (0.0, 0.0, 0.05):
            disturb(made.module, size)
            made.updated()
            assert rows(made.generate(request(), GREEDY)) == rows(own.generate(request(), GREEDY))
            made.release()
            assert made.generator._engine._asleep  # type: ignore[attr-defined]
    finally:
        made.close()


def test_a_groups_prompt_is_read_once_and_never_after_an_update(
    made: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(prompts=2, group=4, longest=2)
    asked = replace(asked, prompts=[np.resize(one, 300) for one in asked.prompts])
    made.generate(asked, GREEDY)
    engine, cached = made.generator._engine, list[int]()  # type: ignore[attr-defined]
    generate = engine._generate

    def counted(what: str, *given: Any) -> Any:
        found = generate(what, *given)
        if what == "generating":
            cached.extend(one.num_cached_tokens for one in found)
        return found

    monkeypatch.setattr(engine, "_generate", counted)
    made.updated()
    made.generate(asked, GREEDY)
    assert [cached[0], cached[4]] == [0, 0]  # what the old weights had read is forgotten
    assert min(cached[1:4] + cached[5:]) >= 128


def test_responses_that_do_not_fit_are_refused() -> None:
    made = policy(replace(SETTINGS, max_model_length=32))
    with pytest.raises(InvalidInput, match="raise it to that") as caught:
        made.generate(request(), GREEDY)
    assert caught.value.field == "vllm_max_model_length"


def test_a_frozen_engine_is_given_up_in_time() -> None:
    made = policy(replace(SETTINGS, server_timeout=3.0))
    made.generate(request(), GREEDY)
    engine = made.generator._engine._llm.llm_engine  # type: ignore[attr-defined]
    step, steps = engine.step, [0]

    def frozen() -> Any:
        steps[0] += 1
        if steps[0] > 3:
            time.sleep(3600)
        return step()

    engine.step = frozen
    begun = time.monotonic()
    with pytest.raises(GeneratorFailed, match="no sign of life for 3 s generating"):
        made.generate(request(), GREEDY)
    made.close()
    assert 3 <= time.monotonic() - begun < 8


def trained(tmp_path: Path, **changes: Any) -> DareTrainer:
    settings = {
        "vllm_engine_kwargs": {"kv_cache_memory_bytes": 1 << 27},
        "vllm_gpu_memory_utilization": 0.05,
        "generator": "vllm",
        "preset": "grpo",
        "learning_rate": 1e-3,
        "save_strategy": "steps",
        "save_steps": 2,
        **changes,
    }
    return tiny.trainer(tmp_path, model=model(), **settings)


@pytest.mark.parametrize("bf16", [False, True])
def test_ten_steps_of_training(bf16: bool, tmp_path: Path) -> None:
    trainer = trained(tmp_path, max_steps=10, use_vllm=True, bf16=bf16)
    gaps, evidence = [], []
    verify = trainer.policy.generator._verify  # type: ignore[attr-defined]

    def noting(*given: Any) -> bool:
        found: bool = verify(*given)
        gaps.append(trainer.policy.generator.gap)  # type: ignore[attr-defined]
        evidence.append(trainer.policy.generator._staleness.evidence)  # type: ignore[attr-defined]
        return found

    trainer.policy.generator._verify = noting  # type: ignore[attr-defined]
    trainer.train()
    assert len(gaps) == 10  # every update, each verified
    assert 0 < max(gaps) < (0.02 if bf16 else 1e-4)
    assert max(evidence) < 10  # of 20
    logged = [line for line in trainer.state.log_history if "loss" in line]
    assert len(logged) == 10
    for line in logged if not bf16 else ():
        assert line["sampling/sampling_logp_difference/max"] < 1e-5
        assert abs(line["sampling/importance_sampling_ratio/mean"] - 1) < 1e-4


def features(found: Any) -> np.ndarray:
    """What a response is compared by: how often it has each token, and how long it is."""
    made = np.zeros((len(found.tokens), tiny.tokenizer().vocab_size + 64))
    for row, tokens in zip(made, found.tokens, strict=True):
        np.add.at(row, tokens, 1)
        row[-1 - len(tokens)] = 1
    return made


def chance(one: np.ndarray, other: np.ndarray, group: np.ndarray) -> float:
    """Of a difference as large, were both drawn alike: responses of a group change sides."""
    draw, times = np.random.default_rng(0), 999
    both, groups = np.concatenate([one, other]), np.concatenate([group, group])
    held = np.maximum(both.sum(0), 1)
    side = np.repeat([1.0, -1.0], len(one))
    mixed = np.empty((times, len(both)))
    for row in mixed:  # the rows of a group lie side by side, half of them on either side
        row[np.lexsort((draw.random(len(both)), groups))] = np.tile([1.0, -1.0], len(one))
    found, others = (((sides @ both) ** 2 / held).sum(-1) for sides in (side, mixed))
    return float((1 + (others >= found).sum()) / (1 + times))


def test_ten_steps_draw_what_the_transformers_generator_would_have_drawn(tmp_path: Path) -> None:
    """At each step both are asked the same of the same weights, and a third at another temperature
    shows that the comparison can fail."""
    sizes = {"rollout_budget": 160, "per_device_train_batch_size": 160}
    trainer = trained(tmp_path, max_steps=10, **sizes)
    own = Policy(trainer.policy.module, trainer.policy.tokenizer, generation_rows=64)
    engine, seen = trainer.policy.generator.generate, list[Any]()

    def beside(asked: Any, sampling: Sampling) -> Any:
        found, other = engine(asked, sampling), replace(asked, seed=asked.seed + 1)
        cooler = replace(sampling, temperature=0.7 * sampling.temperature)
        drawn = (found, own.generate(other, sampling), own.generate(other, cooler))
        seen.append((*map(features, drawn), asked.prompt_R + 1000 * len(seen)))
        return found

    trainer.policy.generator.generate = beside  # type: ignore[method-assign]
    trainer.train()
    assert len(seen) >= 10
    vllm, plain, cool, group = (np.concatenate(part) for part in zip(*seen, strict=True))
    assert len(vllm) >= 1600
    assert chance(vllm, plain, group) > 0.001
    assert chance(vllm, cool, group) <= 0.001


def test_a_dead_engine_ends_the_run_and_its_checkpoint_is_intact(tmp_path: Path) -> None:
    trainer = trained(tmp_path, max_steps=10)
    generate, calls = trainer.policy.generator.generate, [0]

    def dying(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] == 4:
            trainer.policy.generator._engine._llm.llm_engine.engine_core.shutdown()  # type: ignore[attr-defined]
            trainer.policy.generator._engine._llm.llm_engine.engine_core.engine_core = None  # type: ignore[attr-defined]
        return generate(*given)

    trainer.policy.generator.generate = dying  # type: ignore[method-assign]
    with pytest.raises(InvalidInput, match="vLLM failed") as caught:
        trainer.train()
    kept = newest(tmp_path)
    assert kept is not None
    assert kept.name == "checkpoint-2"
    assert "checkpoint-2 is intact" in str(caught.value)
    again = trained(tmp_path, max_steps=4)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 4
