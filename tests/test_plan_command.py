"""`dare plan`: what it prints, what it refuses and what it says about it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import Qwen2Config

import tiny
from dare import InvalidInput, cli
from dare.policy.gpus import card_named
from dare.training.workload import ASSUMED_PROMPT, plan_recipe, workload_of

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Call:
    """Runs `dare plan WORDS` in this process and an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dare", "plan", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    """Qwen2.5-1.5B by its configuration and a tokenizer; there are no weights at all."""
    folder = tmp_path / "model"
    Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        intermediate_size=8960,
        tie_word_embeddings=True,
        architectures=["Qwen2ForCausalLM"],
    ).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    made = {
        "model": str(folder),
        "data": {"tasks": {"count": 64, "seed": 0}},
        "training": {
            "bf16": True,
            "gradient_checkpointing": False,
            "per_device_train_batch_size": 8,
            "rollout_budget": 512,
            "max_completion_length": 1024,
        },
    }
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(made), encoding="utf-8")
    return made


def test_the_shipped_recipe_is_planned_without_a_gpu(dare):
    code, out, errors = dare("--json")
    assert code == 0, errors
    figures = json.loads(out)
    assert figures["model"] == "pocket"
    assert figures["tokens"]["rollouts"] == 256
    assert figures["notes"][0].startswith("prompts: 24 tokens in the mean")


def test_the_table_names_parts_phases_and_tokens(dare, recipe):
    code, out, errors = dare("my.yaml", "--gpu", "H100 80GB", "--fresh-share", "0.25")
    assert code == 0, errors
    assert errors == ""
    for word in ("generate", "score", "train", "key-value cache", "optimiser", "together"):
        assert word in out
    assert "1,543,714,304 parameters" in out
    assert "512 rollouts, 128 of them new (131,072 tokens generated)" in out
    assert "fits H100 80GB" in out


def test_by_default_all_rollouts_are_new_and_none_is_scored(dare, recipe):
    code, out, errors = dare("my.yaml", "--gpu", "H100 80GB")
    assert code == 0, errors
    assert "512 rollouts, 512 of them new (524,288 tokens generated)" in out
    moments = json.loads(dare("my.yaml", "--gpu", "H100 80GB", "--json")[1])["moments"]
    assert {moment["phase"] for moment in moments} == {"generate", "train"}


def test_what_cannot_fit_is_refused_with_the_knob_named(dare, recipe):
    code, out, errors = dare("my.yaml", "--gpu", "48GB")
    assert code == 2
    assert len(errors.splitlines()) == 1
    assert "training needs" in errors
    assert "gradient_checkpointing: true (saves " in errors
    assert "per_device_train_batch_size: 8 -> " in errors
    assert "what helps" in out


def test_the_knob_that_was_named_makes_it_fit(dare, recipe):
    code, out, errors = dare("my.yaml", "--gpu", "48GB", "--gradient-checkpointing", "true")
    assert code == 0, errors
    assert "fits 48 GB" in out


def test_json_says_why_and_what_helps(dare, recipe):
    code, out, _ = dare("--gpu", "RTX 4090", "--json", "my.yaml")
    assert code == 2
    figures = json.loads(out)
    assert figures["fits"] is False
    assert figures["peak_gb"] > figures["usable_gb"]
    assert figures["gpu"]["name"] == "RTX 4090 24GB"
    assert any(knob["setting"] == "peft: {r: 16}" for knob in figures["together"])
    assert figures["together"][-1]["fits"]
    peak = max(moment["total_gb"] for moment in figures["moments"])
    assert figures["peak_gb"] == peak


def test_options_change_the_recipe_as_in_train(dare, recipe):
    peaks = [
        json.loads(dare("my.yaml", "--json", *words)[1])["peak_gb"]
        for words in ([], ["--max-completion-length", "256"], ["--peft", "{r: 8}"])
    ]
    assert max(peaks[1:]) < peaks[0]


def test_a_model_that_no_card_holds_is_said_to_be_too_large(dare, recipe):
    code, _, errors = dare("my.yaml", "--gpu", "6GB")
    assert code == 2
    assert "no setting makes it fit" in errors
    assert "larger card" in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope"], "neither a file nor a shipped recipe"),
        (["nope.yaml"], "there is no such file"),
        (["--gpu", "H10"], "did you mean 'H100'?"),
        (["--model", "./nowhere"], "there is no such folder"),
        (["--model", "nobody/nothing"], "name a folder with a config.json"),
        (["--model", "[7]"], "must be text"),
        (["--peft", "16"], "must be a mapping"),
        (["--peft", "{rank: 16}"], "rank"),
        (["--data", "nowhere.jsonl"], "there is no such file"),
        (["--lerning-rate", "1"], "learning_rate"),
        (["--prompt-tokens", "-1"], "must be more than 0"),
        (["--response-tokens", "0"], "must be more than 0"),
        (["--processes", "0"], "must be at least 1"),
        (["--processes", "3"], "do not split"),
        (["--preset", "papr"], "did you mean 'paper'?"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(dare, words, said):
    code, out, errors = dare(*words)
    assert (code, out) == (2, "")
    assert len(errors.splitlines()) == 1
    assert errors.startswith("error: ")
    assert said in errors


def test_prompts_are_measured_or_the_assumption_is_told(recipe):
    measured = workload_of(recipe)
    assert 10 < measured.workload.prompt_tokens < 60
    assert "in the mean of 64" in measured.notes[0]
    hub = workload_of({**recipe, "data": "somebody/problems"})
    assert hub.workload.prompt_tokens == ASSUMED_PROMPT
    assert "no data here" in hub.notes[0]
    (Path(recipe["model"]) / "tokenizer.json").unlink()
    (Path(recipe["model"]) / "tokenizer_config.json").unlink()
    assert "no tokenizer here" in workload_of(recipe).notes[0]
    assert workload_of(recipe, prompt_tokens=77).workload.prompt_tokens == 77


def test_mixed_precision_needs_no_gpu_to_be_planned(recipe):
    assert workload_of(recipe).workload.precision == "mixed"
    recipe["training"]["bf16"] = False
    assert workload_of(recipe).workload.precision == "float"


def test_settings_of_the_device_have_the_defaults_of_the_card(recipe):
    del recipe["training"]["bf16"], recipe["training"]["gradient_checkpointing"]
    for card in (None, card_named("A100 40GB")):
        workload = workload_of(recipe, card=card).workload
        assert workload.precision == "mixed"
        assert workload.gradient_checkpointing
    assert workload_of(recipe, card=card_named("V100 32GB")).workload.precision == "float"


def test_weights_are_loaded_as_training_loads_them(recipe):
    path = Path(recipe["model"]) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dtype": "bfloat16"}))
    assert workload_of(recipe).workload.precision == "mixed"
    assert workload_of({**recipe, "peft": {"r": 8}}).workload.precision == "half"
    recipe["training"]["model_init_kwargs"] = {"dtype": "auto"}
    assert workload_of(recipe).workload.precision == "half"


@pytest.mark.parametrize("fp16", [False, True])
def test_training_float16_weights_is_refused_and_freezing_them_is_not(fp16, recipe):
    recipe["training"] |= {"model_init_kwargs": {"dtype": "float16"}, "bf16": False, "fp16": fp16}
    with pytest.raises(
        InvalidInput, match=r"float32 \(`fp16: true` computes in float16\)"
    ) as caught:
        workload_of(recipe)
    assert caught.value.field == "model_init_kwargs.dtype"
    assert workload_of({**recipe, "peft": {"r": 8}}).workload.shape.weight_size == 2


def test_16_bit_weights_and_sharding_are_told(recipe):
    recipe["training"] |= {
        "model_init_kwargs": {"dtype": "bfloat16"},
        "deepspeed": "zero3.json",
    }
    planned = workload_of(recipe)
    assert planned.workload.precision == "half"
    assert any("without a float32 master copy" in note for note in planned.notes)
    assert any("sharding is not modelled" in note for note in planned.notes)


def test_evaluation_and_cold_start_are_decoded_too(recipe):
    recipe["training"] |= {"rollout_budget": 64, "generation_rows": 512}
    recipe["curriculum"] = {"cold_start.references": 4}
    assert workload_of(recipe).workload.rows == 64
    recipe["eval_data"] = {"tasks": {"count": 200, "seed": 1}}
    assert workload_of(recipe).workload.rows == 200
    recipe["curriculum"] = {"cold_start.references": 64, "cold_start.train": False}
    recipe["curriculum"]["estimator.name"] = "paper"
    assert workload_of(recipe).workload.rows == 512


def test_a_step_of_so_many_prompts_is_planned_at_its_most(recipe):
    curriculum = {"prompts_per_step": 6}
    training = {**recipe["training"], "preset": "paper", "rollout_budget": 96}
    asked = {**recipe, "training": {**training, "curriculum": curriculum}}
    planned = workload_of(asked)
    assert planned.workload.rollout_budget == 96
    assert any("48 if its prompts are medium" in note for note in planned.notes)


def test_a_plan_from_python_has_a_peak(recipe):
    plan = plan_recipe(recipe, prompt_tokens=128, response_tokens=300)
    assert 25 < plan.peak_gb < 60
    with pytest.raises(InvalidInput, match="do not split"):
        plan_recipe(recipe, processes=7)
