"""The memory plan: exact counts, what each setting does to it, and what autograd really saves."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, Qwen2Config, Qwen2Model

import tiny
from dare import InvalidInput, pocket
from dare.policy import memory
from dare.policy.gpus import CARDS, card_named
from dare.policy.knobs import FULL_PASS, fuller_passes, knobs_that_help, knobs_together
from dare.policy.memory import GB, plan_memory, usable
from dare.policy.shape import ModelShape, shape_of, shape_of_config
from dare.policy.workload import Workload

QWEN = Qwen2Config(
    vocab_size=151936,
    hidden_size=1536,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    intermediate_size=8960,
    tie_word_embeddings=True,
)


@pytest.fixture(scope="module")
def qwen() -> ModelShape:
    return shape_of_config(QWEN)


@pytest.fixture(scope="module")
def qwen_lora() -> ModelShape:
    return shape_of_config(QWEN, {"r": 16})


@pytest.fixture
def load(qwen: ModelShape) -> Workload:
    """A usual step: 512 rollouts of 1,024 tokens, eight rows a pass, mixed precision."""
    return Workload(
        qwen,
        prompt_tokens=128,
        max_completion_length=1024,
        rollout_budget=512,
        per_device_train_batch_size=8,
        mixed_precision=True,
    )


def count(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


# ---- shapes ----


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_exactly(tied):
    model = tiny.blank(tie_word_embeddings=tied)
    shape = shape_of_config(model.config)
    assert shape.parameters == shape.trained == count(model)
    assert shape.weight_bytes == 4 * count(model)


def test_tied_heads_are_counted_once():
    tied, untied = (
        shape_of_config(tiny.blank(tie_word_embeddings=tied).config) for tied in (True, False)
    )
    assert untied.parameters - tied.parameters == tied.vocabulary * tied.hidden


@pytest.mark.parametrize("tied", [True, False])
def test_products_are_made_with_all_matrices_but_the_table_of_tokens(tied):
    model = tiny.blank(tie_word_embeddings=tied)
    layers = [part for part in model.modules() if isinstance(part, torch.nn.Linear)]
    counted = shape_of_config(model.config).matrix_parameters
    assert counted == sum(layer.weight.numel() for layer in layers)


def test_the_pocket_policy_is_a_name_and_a_folder():
    assert shape_of("pocket") == shape_of(pocket.path())
    assert shape_of("pocket").parameters == count(pocket.load_policy())


def test_adapters_are_those_that_training_makes():
    settings = {"r": 4, "target_modules": ["q_proj", "up_proj"]}
    model = get_peft_model(tiny.blank(), LoraConfig(task_type="CAUSAL_LM", **settings))
    shape = shape_of_config(tiny.blank().config, settings)
    assert shape.trained == sum(w.numel() for w in model.parameters() if w.requires_grad)
    assert shape.parameters == count(tiny.blank())
    assert shape.weight_bytes == 4 * count(model)


def test_weights_have_the_type_asked_for_or_that_of_the_configuration():
    config = tiny.blank().config
    adapters = {"r": 4, "target_modules": ["q_proj"]}
    shape = shape_of_config(config, adapters, dtype="float16")  # frozen weights may have it
    assert (shape.weight_size, shape.trained_bytes) == (2, 4 * shape.trained)
    config.dtype = "bfloat16"
    assert shape_of_config(config).weight_size == 2
    assert shape_of_config(config, dtype="float32").weight_size == 4
    with pytest.raises(InvalidInput, match="dtype"):
        shape_of_config(config, dtype="float8")


def test_a_model_that_the_paged_decoder_cannot_read_has_no_copy(load):
    assert shape_of_config(tiny.blank().config).paged
    shape = shape_of_config(GPT2Config(n_embd=32, n_layer=3, n_head=2, vocab_size=50))
    assert not shape.paged
    parts = plan_memory(replace(load, shape=shape)).worst("generate").parts
    assert "decoder's weight copy" not in parts


def test_adapters_are_float32_over_16_bit_weights():
    adapters = {"r": 4, "target_modules": ["q_proj"]}
    shape = shape_of_config(tiny.blank().config, adapters, dtype="bfloat16")
    assert shape.weight_size == 2
    assert shape.trained_bytes == 4 * shape.trained


def test_names_of_older_configurations_are_understood():
    shape = shape_of_config(GPT2Config(n_embd=32, n_layer=3, n_head=2, vocab_size=50))
    assert (shape.hidden, shape.layers, shape.intermediate, shape.head_dim) == (32, 3, 128, 16)


@pytest.mark.parametrize(
    ("peft", "said"),
    [({"r": 4, "target_modules": ["nowhere"]}, "nowhere"), ({"rank": 4}, "rank")],
)
def test_adapters_that_cannot_be_made_are_refused(peft, said):
    with pytest.raises(InvalidInput, match=said):
        shape_of_config(tiny.blank().config, peft)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_folder_that_is_not_there_is_refused(name):
    with pytest.raises(InvalidInput, match="no such folder"):
        shape_of(name)


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"config\.json"):
        shape_of(tmp_path)


# ---- the plan ----


def test_float32_weights_gradients_and_adamw_take_16_bytes_a_parameter(qwen, load):
    assert qwen.parameters == 1_543_714_304
    train = plan_memory(load).worst("train")
    static = sum(train.parts[part] for part in ("weights", "gradients", "optimiser"))
    assert static == 16 * qwen.parameters
    assert static / GB == pytest.approx(24.7, abs=0.05)


def test_16_bit_weights_take_8_bytes_a_parameter(load):
    plan = plan_memory(replace(load, shape=shape_of_config(QWEN, dtype="bfloat16")))
    parts = plan.worst("train").parts
    static = sum(parts[part] for part in ("weights", "gradients", "optimiser"))
    assert static == 8 * load.shape.parameters


def test_adapters_need_less(load, qwen_lora):
    full, lora = plan_memory(load), plan_memory(replace(load, shape=qwen_lora))
    for before, after in zip(full.worst_moments(), lora.worst_moments(), strict=True):
        assert after.total < before.total
    assert lora.worst("train").parts["optimiser"] == 8 * qwen_lora.trained


def test_the_decoder_copy_and_the_cache_are_gone_before_training(load):
    parts = plan_memory(load).worst("generate").parts
    assert parts["decoder's weight copy"] == 2 * load.shape.matrix_parameters
    tokens = 64 * 128 + 512 * 1024  # a prompt once a group of eight, a response a row
    assert parts["key-value cache"] == tokens * 2 * 28 * 2 * 128 * 2
    assert "gradients" not in parts
    for moment in plan_memory(load).moments:
        held = {"decoder's weight copy", "key-value cache"} & set(moment.parts)
        assert bool(held) == (moment.phase == "generate")


def test_the_cache_takes_what_is_left_and_rows_wait(load):
    whole = plan_memory(load)
    assert whole.waiting == 0
    assert plan_memory(load, 1e15) == whole
    limit = whole.worst("generate").total - 5 * GB
    tight = plan_memory(load, limit)
    assert tight.worst("generate").total < limit
    assert 0 < tight.waiting < load.rows


def test_one_rollout_must_fit_beside_the_weights(load):
    weights = 14 * load.shape.parameters  # with the optimiser and the decoder's copy
    plan = plan_memory(load, float(weights))
    assert plan.worst("generate").total > weights
    assert plan.waiting == load.rows - 1


def test_a_reference_is_copied_unless_adapters_can_be_switched_off(load, qwen_lora):
    def reference(workload: Workload) -> float:
        return plan_memory(workload).peak.parts.get("reference copy", 0.0)

    assert reference(load) == 0
    assert reference(replace(load, beta=0.1)) == load.shape.weight_bytes
    assert reference(replace(load, beta=0.1, shape=qwen_lora)) == 0


def test_several_processes_keep_buckets_of_gradients(load):
    parts = plan_memory(replace(load, processes=2)).worst("train").parts
    assert parts["gradient buckets"] == load.shape.trained_bytes


def test_nothing_is_scored_where_nothing_reads_scores(load):
    assert plan_memory(replace(load, scores=False)).worst("score") is None
    assert plan_memory(replace(load, scores=False, beta=0.1)).worst("score") is not None


MORE = {
    "prompt_tokens": (64, 512),
    "max_completion_length": (256, 4096),
    "per_device_train_batch_size": (2, 32),
    "generation_rows": (32, 512),
    "rollout_budget": (64, 512),
    "score_batch_tokens": (2048, 65536),
    "beta": (0.0, 0.1),
    "processes": (1, 2),
}


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("name", MORE)
def test_more_of_anything_never_needs_less(load, name, checkpointing):
    """Except several processes, which share the rows that are decoded."""
    few, many = (
        plan_memory(replace(load, gradient_checkpointing=checkpointing, **{name: value}))
        for value in MORE[name]
    )
    pairs = zip(few.moments, many.moments, strict=True)
    assert all(a.total <= b.total for a, b in pairs if (name, a.phase) != ("processes", "generate"))
    assert any(a.total < b.total for a, b in zip(few.moments, many.moments, strict=True))


@given(
    rows=st.integers(1, 64),
    length=st.integers(1, 8192),
    prompt=st.floats(1, 4096),
    mixed=st.booleans(),
    beta=st.sampled_from([0.0, 0.1]),
)
def test_checkpointing_never_needs_more_in_the_end(qwen, rows, length, prompt, mixed, beta):
    """What is read again is one layer, what was kept is all of them."""
    work = Workload(qwen, prompt, length, 64, rows, mixed_precision=mixed, beta=beta)
    kept = plan_memory(work).peak_gb
    assert plan_memory(replace(work, gradient_checkpointing=True)).peak_gb <= kept * 1.0001


def test_parts_add_up_and_the_peak_is_the_largest_moment(load):
    plan = plan_memory(load)
    assert all(sum(m.parts.values()) == m.total for m in plan.moments)
    assert plan.peak_gb == max(moment.total for moment in plan.moments) / GB
    assert plan.needed_gb == pytest.approx(plan.peak_gb + 0.5)
    assert set().union(*(moment.parts for moment in plan.moments)) <= set(memory.PARTS)


def test_a_head_that_is_changed_afterwards_holds_all_logits(load):
    scaled = replace(load, shape=replace(load.shape, plain_head=False))
    assert plan_memory(scaled).worst("train").parts["logits"] > 8 * 1024 * 151936 * 8


def test_a_mean_response_replaces_the_limit(load):
    assert load.response_tokens == 1024
    assert replace(load, mean_response=300).response_tokens == 300
    assert replace(load, mean_response=3000).response_tokens == 1024


def test_tokens_of_a_step(load):
    assert replace(load, fresh_share=0.25, processes=2).step_tokens() == {
        "rollouts": 512,
        "fresh_rollouts": 128,
        "generated": 128 * 1024,
        "trained": 512 * (128 + 1024),
        "micro_batches": 32,
        "micro_batch": 8 * (128 + 1024),
    }
    thrice = replace(load, num_iterations=3).step_tokens()
    assert thrice["trained"] == 3 * 512 * (128 + 1024)
    assert thrice["micro_batches"] == 3 * 64


TOKENS = 520  # no other size of the model below


@pytest.mark.parametrize("precision", ["mixed", "half", "float"])
@pytest.mark.parametrize(("hidden", "wide"), [(64, 256), (128, 192)])
def test_what_a_layer_keeps_is_what_autograd_saves(precision, hidden, wide):
    def saved(layers: int) -> tuple[Qwen2Config, int]:
        config = Qwen2Config(
            vocab_size=64,
            hidden_size=hidden,
            intermediate_size=wide,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        model = Qwen2Model(config).train()
        model = model.to(torch.bfloat16) if precision == "half" else model
        storages: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            if TOKENS in tensor.shape:  # an activation, not a weight
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage
            return tensor

        mixed = torch.autocast("cpu", torch.bfloat16)
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with hooks, mixed if precision == "mixed" else contextlib.nullcontext():
            output = model(input_ids=torch.zeros(1, TOKENS, dtype=torch.long), use_cache=False)
        assert output is not None  # the graph lives until here
        return config, sum(storage.nbytes() for storage in storages.values())

    (config, more), (_, less) = saved(3), saved(1)
    shape = shape_of_config(config)
    if precision == "half":
        shape = replace(shape, weight_size=2)
    work = Workload(shape, 1, 1, 1, 1, mixed_precision=precision == "mixed")
    fewer = replace(work, shape=replace(shape, layers=1))
    counted = (memory._kept(work) - memory._kept(fewer)) / work.micro_batch_tokens
    assert counted == pytest.approx((more - less) / TOKENS, rel=0.05)


# ---- cards and knobs ----


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100 80GB", "H100 80GB"),
        ("h100", "H100 80GB"),
        ("NVIDIA A100-40GB", "A100 40GB"),
        ("RTX 4090", "RTX 4090 24GB"),
        ("4090", "RTX 4090 24GB"),
        ("nvidia geforce rtx 3090", "RTX 3090 24GB"),
        ("L4", "L4 24GB"),
        ("H200", "H200 141GB"),
    ],
)
def test_cards_have_many_spellings(text, name):
    assert card_named(text).name == name
    assert card_named(text).bytes == CARDS[name] * 2**30


@pytest.mark.parametrize("text", ["24GB", "24", "24 gb", "24G", "24.0GB"])
def test_a_size_is_a_card(text):
    assert card_named(text).bytes == 24e9


@pytest.mark.parametrize(
    ("text", "said"),
    [("H10", "H100"), ("rtx 409", "RTX 4090"), ("A100", "A100 40GB"), ("0GB", "positive")],
)
def test_a_card_that_is_unknown_or_unclear_gets_a_suggestion(text, said):
    with pytest.raises(InvalidInput, match=said):
        card_named(text)


def test_some_of_a_card_is_left_alone():
    assert 0.9 * 80e9 < usable(80e9) < 0.95 * 80e9


def test_knobs_name_what_they_save(load):
    plan = plan_memory(load)
    limit = plan.worst("train").total - 5 * GB
    assert plan.worst("generate").total < limit
    found = knobs_that_help(load, limit)
    assert found[0].setting == "gradient_checkpointing: true"
    changed = plan_memory(replace(load, gradient_checkpointing=True))
    saved = plan.worst("train").total - changed.worst("train").total
    assert found[0].saves_gb == pytest.approx(saved / GB)
    assert found[0].fits
    assert {knob.phase for knob in found} == {"train"}
    assert not any(knob.setting.startswith("generation_rows") for knob in found)


def test_a_smaller_batch_still_splits_the_rollouts(load):
    work = replace(load, rollout_budget=48, per_device_train_batch_size=12)
    limit = plan_memory(work).peak.total - GB
    found = [knob.setting for knob in knobs_that_help(work, limit)]
    assert any(text == "per_device_train_batch_size: 12 -> 8" for text in found)


def test_no_knob_is_named_where_all_fits(load):
    assert knobs_that_help(load, 1e15) == []
    assert knobs_together(load, 1e15)[0] == []


def test_together_they_fit_and_each_is_needed(load, qwen_lora):
    limit = usable(card_named("RTX 4090").bytes)
    knobs, plan = knobs_together(load, limit, qwen_lora)
    assert plan.peak.total <= limit
    assert not any(knob.fits for knob in knobs[:-1])
    assert knobs[-1].fits
    assert any(knob.setting == "peft: {r: 16}" for knob in knobs)


def test_settings_that_change_the_result_are_the_last_resort(load, qwen_lora):
    limit = usable(card_named("A100 40GB").bytes)
    knobs, plan = knobs_together(load, limit, qwen_lora)
    assert plan.peak.total <= limit
    assert all(knob.neutral for knob in knobs)


def test_a_card_that_is_far_too_small_stays_so(load, qwen_lora):
    knobs, plan = knobs_together(load, 2 * GB, qwen_lora)
    assert knobs
    assert plan.peak.total > 2 * GB


def test_a_slow_update_is_named_where_it_is_the_peak(load):
    work = replace(load, optim="adamw_torch", gradient_checkpointing=True, mean_response=8)
    plan = plan_memory(work)
    assert plan.worst("train").name == "the optimiser's update"
    limit = plan.worst("train").total - 1.5 * GB
    settings = [knob.setting for knob in knobs_that_help(work, limit)]
    assert "optim: adamw_torch_fused" in settings


def test_a_workload_is_plain_data(load):
    assert dataclasses.asdict(load)["shape"]["layers"] == 28


def test_fuller_passes_are_proposed_where_they_fit(load):
    short = {"mean_response": 200.0, "prompt_tokens": 50.0, "gradient_checkpointing": True}
    small = replace(load, per_device_train_batch_size=2, **short)
    rows = fuller_passes(small, usable(80 * GB))
    assert rows is not None
    larger = replace(small, per_device_train_batch_size=rows)
    assert larger.micro_batch_tokens >= FULL_PASS > larger.micro_batch_tokens / 2
    assert plan_memory(larger).peak.total <= usable(80 * GB)
    assert small.rollout_budget % rows == 0
    assert fuller_passes(larger, usable(80 * GB)) is None, "they are full"
    trained = max(one.total for one in plan_memory(small).moments if one.phase == "train")
    assert fuller_passes(small, trained) is None, "no room"
