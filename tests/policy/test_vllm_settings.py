"""What of the generator `vllm` needs no vLLM: settings, weights, and what is refused."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

import tiny
from dare.errors import InvalidInput
from dare.policy import vllm, vllm_colocated
from dare.policy.generate import GenerationRequest, GeneratorFailed
from dare.policy.policy import Policy
from dare.policy.vllm_engine import Drawn, VllmSettings, check_version


def test_trls_names_reach_the_engine(tmp_path: Path) -> None:
    args = tiny.config(
        tmp_path,
        use_vllm=True,
        vllm_mode="server",
        vllm_server_host="node",
        vllm_server_port=9000,
        vllm_enable_sleep_mode=True,
        vllm_max_model_length=512,
        vllm_gpu_memory_utilization=0.4,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=2.0,
        vllm_importance_sampling_clip_min=0.5,
    )
    assert args.generator == "vllm"
    found = args.engine
    assert (found.mode, found.server_url, found.logprobs) == ("server", "http://node:9000", True)
    assert (found.max_model_length, found.gpu_memory_utilization) == (512, 0.4)
    assert found.enable_sleep_mode
    how = args.correction
    assert (how.mode, how.low, how.high) == ("token_truncate", 0.5, 2.0)
    other = tiny.config(tmp_path, vllm_server_base_url="https://a/b/")
    assert (other.generator, other.engine.server_url) == ("transformers", "https://a/b")


def test_two_generators_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="leave one of the two out"):
        tiny.config(tmp_path, use_vllm=True, generator="mine:Own")


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_it_is_one_line_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"pip install 'vllm>=0\.26,<0\.32'") as caught:
        tiny.trainer(tmp_path, use_vllm=True)
    assert caught.value.field == "generator"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("found", "fits"),
    [("0.26.0", True), ("0.31.0+cu130", True), ("0.25.1", False), ("0.32.0", False)],
)
def test_a_version_that_does_not_fit_is_named(found: str, fits: bool) -> None:
    if fits:
        check_version(found, "vllm")
        return
    with pytest.raises(InvalidInput, match=f"vllm {found} does not fit: pip install"):
        check_version(found, "vllm")


def test_more_ranks_than_processes_or_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = VllmSettings(tensor_parallel_size=2)
    with pytest.raises(InvalidInput, match="of which there are 1: choose a divisor") as caught:
        Policy(tiny.policy(), tiny.tokenizer(), generator="vllm", engine=settings)
    assert caught.value.field == "vllm_tensor_parallel_size"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InvalidInput, match=r"this machine has 1 GPU\(s\)"):
        vllm_colocated.check_ranks(2, torch.device("cuda"), 2)
    vllm_colocated.check_ranks(1, torch.device("cuda"), 3)


def test_more_room_than_the_model_has_is_refused() -> None:
    made = tiny.policy()
    room = made.config.max_position_embeddings + 1
    with pytest.raises(InvalidInput, match="context ends at") as caught:
        Policy(made, tiny.tokenizer(), generator="vllm", engine=VllmSettings(max_model_length=room))
    assert (caught.value.field, caught.value.value) == ("vllm_max_model_length", room)


def test_weights_are_those_of_a_checkpoint() -> None:
    model = tiny.policy()
    found = dict(vllm.weights_of(model, torch.float32))
    assert found.keys() == model.state_dict().keys()
    tied = tiny.blank(tie_word_embeddings=True)
    assert "lm_head.weight" not in dict(vllm.weights_of(tied, torch.float32))


def test_adapters_are_added_and_left_alone() -> None:
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"])
    model = get_peft_model(tiny.policy(), config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn_like(weight))
    sent = dict(vllm.weights_of(model, torch.float32))
    merged = model.merge_and_unload().state_dict()
    assert sent.keys() == merged.keys()
    for name, value in merged.items():
        torch.testing.assert_close(sent[name], value)


@pytest.mark.parametrize("more", [{"use_dora": True}, {"target_modules": ["embed_tokens"]}])
def test_adapters_that_are_not_one_matrix_are_refused(more: dict[str, Any]) -> None:
    model = get_peft_model(tiny.policy(), LoraConfig(**{"target_modules": ["q_proj"], **more}))
    with pytest.raises(InvalidInput, match="plain LoRA"):
        vllm.check_weights(model)


def test_seeds_are_of_the_rollout_and_of_nothing_else() -> None:
    asked = GenerationRequest(
        prompts=[np.array([3, 4]), np.array([5])],
        prompt_R=np.array([0, 0, 1]),
        max_tokens_R=np.array([2, 9, 4]),
        noise_R=np.array([7, 8, 9]),
        seed=1,
        step=2,
    )
    first = vllm.wanted_of(asked)
    assert [(one.prompt, one.max_tokens) for one in first] == [([3, 4], 2), ([3, 4], 9), ([5], 4)]
    assert len({one.seed for one in first}) == 3
    alone = replace(
        asked, prompt_R=np.array([1]), max_tokens_R=np.array([4]), noise_R=np.array([9])
    )
    assert vllm.wanted_of(alone) == [first[2]]
    for change in ({"step": 3}, {"seed": 2}, {"purpose": "judge"}):
        assert vllm.wanted_of(replace(asked, **change))[0].seed != first[0].seed  # type: ignore[arg-type]


def test_responses_end_where_an_end_was_drawn() -> None:
    seen: list[int] = []
    found = vllm.generated_of(
        [Drawn([5, 1], [-1.0, -2.0]), Drawn([5], [-1.0])], [1], True, seen.append
    )
    assert found.finish_R.tolist() == [0, 1]
    assert found.logprobs is not None
    assert found.logprobs[0].tolist() == [-1.0, -2.0]
    assert seen == [3]


def test_a_call_that_is_silent_is_given_up_and_one_that_shows_life_is_not() -> None:
    thread = vllm_colocated._Watched(2.0)

    def busy() -> int:
        for _ in range(25):
            time.sleep(0.1)
            thread.alive()
        return 7

    assert thread.call("working", busy) == 7
    with pytest.raises(GeneratorFailed, match="ValueError: broken more"):
        thread.call("working", lambda: _raise(ValueError("broken\nmore")))
    begun = time.monotonic()
    with pytest.raises(GeneratorFailed, match=r"no sign of life for 2 s working"):
        thread.call("working", lambda: time.sleep(60))
    assert time.monotonic() - begun < 30  # far from 60
    assert thread.lost


def test_a_cache_of_the_old_weights_that_is_in_use_is_a_failed_transfer() -> None:
    """Also under `python -O`, where asserts are gone: see `test_asserts_have_no_effects`."""
    calls: list[str] = []

    class Llm:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: calls.append(name)  # None, as vLLM's False

    engine = vllm_colocated.Colocated.__new__(vllm_colocated.Colocated)
    vars(engine).update(_asleep=False, _thread=vllm_colocated._Watched(5.0), _llm=Llm())
    with pytest.raises(GeneratorFailed, match=r"taking new weights .*old weights is in use"):
        engine.load([])
    assert calls == ["apply_model", "reset_prefix_cache"]


def test_who_shares_an_engine_exchanges_numbers_and_each_finds_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three processes, one without anything to ask, stood in for by threads."""
    asked = [[[5, 1 << 61, 7, 8], [1, 2]], [], [[3], [4, 5, 6]]]
    meeting, place = threading.Barrier(3, timeout=30), threading.local()
    table: list[Any] = [None] * 3

    def gathered(found: list[torch.Tensor], mine: torch.Tensor, group: Any) -> None:
        table[place.rank] = mine
        meeting.wait()
        for one, other in zip(found, table, strict=True):
            one.copy_(other)
        meeting.wait()

    monkeypatch.setattr(torch.distributed, "all_gather", gathered)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda _: place.rank)

    def work(rank: int) -> tuple[list[list[int]], slice]:
        place.rank = rank
        engine = vllm_colocated.Colocated.__new__(vllm_colocated.Colocated)
        settings = VllmSettings(tensor_parallel_size=3)
        vars(engine).update(_group="it", _settings=settings, _device=torch.device("cpu"))
        return engine._everyones(asked[rank])

    with ThreadPoolExecutor(3) as pool:
        for mine, (every, where) in zip(asked, pool.map(work, range(3)), strict=True):
            assert every == [*asked[0], *asked[2]]
            assert every[where] == mine


def _raise(error: Exception) -> None:
    raise error
