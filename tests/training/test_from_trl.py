"""TRL's arguments: each is a field here, does no harm, or is answered by one sentence."""

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from transformers import HfArgumentParser

import tiny
from dare import DareConfig, DareTrainer, InvalidInput
from dare.templates.encode import prompt_text
from dare.training.from_trl import few_figures, is_trls
from dare.training.recipe import change, config_of, load_recipe

FIELDS = {item.name for item in dataclasses.fields(DareConfig)}
MISSING = [item for item in dataclasses.fields(trl.GRPOConfig) if item.name not in FIELDS]
# Defaults of TRL that act: a loss for mixtures of experts, a weight on the KL term.
ACTS = {"router_aux_loss_coef", "use_bias_correction_kl"}
INERT = [item for item in MISSING if item.name not in ACTS]


def made(folder: Path, **others: Any) -> DareTrainer:
    given = (tiny.policy(), tiny.lottery, tiny.config(folder), tiny.problems(0.5))
    return DareTrainer(*given, processing_class=tiny.tokenizer(), **others)


def test_every_argument_of_trl_is_known() -> None:
    assert [item.name for item in MISSING if not is_trls(item.name)] == []


@pytest.mark.parametrize(
    "item", [item for item in MISSING if item.name not in ACTS], ids=lambda item: item.name
)
def test_trls_defaults_are_taken(item: Any, tmp_path: Path) -> None:
    default = item.default if item.default is not dataclasses.MISSING else item.default_factory()
    tiny.config(tmp_path, **{item.name: default})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("vllm_structured_outputs_regex", "[0-9]+", "temperature, top_p and top_k"),
        ("vllm_importance_sampling_cap", 2.0, "vllm_importance_sampling_clip_max"),
        ("vllm_tensor_paralel_size", 2, "vllm_tensor_parallel_size"),
        ("max_prompt_length", 512, "drop the rows"),
        ("repetition_penalty", 1.1, "temperature, top_p and top_k"),
        ("generation_kwargs", {"num_beams": 2}, "temperature, top_p and top_k"),
        ("entropy_coef", 0.01, "temperature"),
        ("sync_ref_model", True, "reference"),
        ("multi_objective_aggregation", "normalize_then_sum", "reward_weights"),
        ("num_generatoins", 8, "num_generations"),
    ],
)
def test_what_is_not_built_is_answered(name: str, value: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        tiny.config(tmp_path, **{name: value})
    assert caught.value.field == name


def test_a_recipe_and_the_command_line_answer_alike() -> None:
    with pytest.raises(InvalidInput, match="temperature, top_p and top_k"):
        config_of(change(load_recipe("quickstart"), ["--min-p", "0.1"]))
    assert config_of(change(load_recipe("quickstart"), ["--min-p", "0"]))


@pytest.mark.parametrize("name", ["tools", "environment_factory", "rollout_func", "reward_func"])
def test_arguments_of_trls_trainer_are_answered(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        made(tmp_path, **{name: [print]})
    assert caught.value.field == name


def test_trls_trainer_has_no_argument_that_is_not_answered(tmp_path: Path) -> None:
    ours, theirs = (inspect.signature(kind).parameters for kind in (DareTrainer, trl.GRPOTrainer))
    absent = [name for name in theirs if name not in ours and name != "reward_processing_classes"]
    assert {"tools", "rollout_func"} <= set(absent)
    made(tmp_path, **dict.fromkeys(absent))


def test_the_chat_template_gets_its_arguments(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, chat_template_kwargs={"add_generation_prompt": False})
    turn = [{"role": "user", "content": "1+1="}]
    assert prompt_text(trainer.processing_class, turn) == "u:1+1=\n"
    assert prompt_text(tiny.trainer(tmp_path).processing_class, turn) == "u:1+1=\na:"


def test_dropout_is_off_where_asked(tmp_path: Path) -> None:
    for asked in (False, True):
        model = tiny.blank(attention_dropout=0.5)
        model.add_module("more", torch.nn.Dropout(0.5))
        trainer = tiny.trainer(tmp_path, model=model, disable_dropout=asked)
        assert trainer.policy.drops_out is not asked


def test_evaluation_samples_have_trls_name(tmp_path: Path) -> None:
    assert tiny.config(tmp_path, num_generations_eval=3).eval_samples == 3


def test_transformers_parser_reads_the_config(tmp_path: Path) -> None:
    words = ["--output_dir", str(tmp_path), "--num_generations", "4", "--use_cpu", "true"]
    words += ["--bf16", "false", "--gradient_accumulation_steps", "2"]
    (parsed,) = HfArgumentParser(DareConfig).parse_args_into_dataclasses(words)
    assert parsed.num_generations == 4
    assert parsed.curriculum_config().rollout_budget == 16


# --- rollouts in the terminal ---------------------------------------------------------------------


def test_completions_are_printed_where_asked(tmp_path: Path, capsys: Any) -> None:
    tiny.trainer(tmp_path, max_steps=1).train()
    assert "response:" not in capsys.readouterr().out
    both = {"log_completions": True, "num_completions_to_print": 1}
    tiny.trainer(tmp_path / "both", max_steps=1, **both).train()
    shown = capsys.readouterr().out
    assert shown.count("response:") == shown.count("answer:") == 1
    assert "step 1, reward" in shown


def test_a_run_without_any_reward_says_so_early_and_shows_a_rollout(
    tmp_path: Path, capsys: Any
) -> None:
    never = tiny.problems(0.0)
    tiny.trainer(tmp_path, data=never, max_steps=5).train()
    told = capsys.readouterr().err
    assert told.count("Every reward of the first 3 steps is 0") == 1
    assert "prompt: 0+" in told
    assert "answer: " in told
    tiny.trainer(
        tmp_path / "again", data=[*never, *tiny.problems(1.0, each=40)], max_steps=5
    ).train()
    assert "is 0" not in capsys.readouterr().err


# --- figures --------------------------------------------------------------------------------------


def logs_of(kind: type[Any], model: Path, settings: Any) -> set[str]:
    rows = Dataset.from_list(tiny.problems(0.5, each=16))
    trainer = kind(str(model), tiny.lottery, settings, rows, processing_class=tiny.tokenizer())
    trainer.train()
    return set(trainer.state.log_history[0])


def test_figures_have_trls_names_and_ours_are_apart(tmp_path: Path) -> None:
    """What TRL logs of a step, dashboards of its runs find here too."""
    plain = {"max_steps": 1, "logging_steps": 1, "report_to": "none", "use_cpu": True, "beta": 0.1}
    plain |= {"max_completion_length": 8, "per_device_train_batch_size": 32, "bf16": False}
    model = tmp_path / "model"
    tiny.policy().save_pretrained(model)
    tiny.tokenizer().save_pretrained(model)
    theirs = logs_of(trl.GRPOTrainer, model, trl.GRPOConfig(str(tmp_path / "trl"), **plain))
    plain["rollout_budget"] = 32
    ours = logs_of(DareTrainer, model, DareConfig(str(tmp_path / "own"), **plain))
    apart = {name for name in theirs if name.startswith("rewards/")}  # one a reward function
    narrow = {"clip_ratio/low_min", "clip_ratio/high_max"}  # of micro-batches, which differ here
    missing = theirs - ours - apart - narrow - {"epoch"}
    assert missing == set()
    more = ours - theirs
    assert {name for name in more if not name.startswith("curriculum/")} == {"step"} & more
    assert "curriculum/coverage" in ours


def test_figures_of_the_update_are_those_of_its_tokens(tmp_path: Path) -> None:
    tiny.trainer(tmp_path / "once", curriculum={"fresh_share": 1.0}).train()
    ratios = [line["objective_ratio"] for line in tiny.lines(tmp_path / "once" / "metrics.jsonl")]
    assert ratios == pytest.approx([1.0] * 3)  # of one update on fresh rollouts
    many = {"num_iterations": 3, "learning_rate": 1e-2, "max_steps": 6, "epsilon": 0.02}
    trainer = tiny.trainer(tmp_path / "many", **many)
    trainer.train()
    logs = [line for line in trainer.state.log_history if "entropy" in line]
    for line in logs:
        region = line["clip_ratio/low_mean"] + line["clip_ratio/high_mean"]
        assert line["clip_ratio/region_mean"] == pytest.approx(region)
        assert line["frac_reward_zero_std"] == 1.0 - line["curriculum/varied_groups"]
        assert 0 < line["entropy"] < np.log(len(tiny.VOCABULARY))
        assert line["completions/min_length"] <= line["completions/mean_length"]
    assert logs[-1]["clip_ratio/region_mean"] > 0
    assert logs[-1]["num_tokens"] > logs[0]["num_tokens"] > 0


@pytest.mark.parametrize("quiet", [False, True])
def test_a_few_figures_are_printed_and_all_are_logged(
    quiet: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reward(completions: list[str], log_metric: Any, **_: Any) -> list[float]:
        log_metric("own", 0.5)
        return [float(len(text) % 2) for text in completions]

    given = {"max_steps": 1, "logging_steps": 1, "disable_tqdm": quiet, "beta": 0.1}
    trainer = tiny.trainer(tmp_path, reward=reward, **given)
    trainer.train()
    line = next(line for line in capsys.readouterr().out.splitlines() if "'reward'" in line)
    printed = ast.literal_eval(line[line.index("{") :])
    few = {"step", "reward", "reward_std", "frac_reward_zero_std", "completions/mean_length"}
    assert set(printed) - {"kl"} == few | {"entropy", "tokens", "seconds", "own"}
    logged = next(line for line in trainer.state.log_history if "reward" in line)
    assert len(logged) > 30
    assert float(printed["reward"]) == pytest.approx(logged["reward"], rel=1e-3)
    assert printed["tokens"] == logged["num_tokens"]
    assert few_figures({**logged, "kl": 0.25}, 1)["kl"] == 0.25
    assert "kl" not in few_figures({**logged, "kl": 0.0}, 1)
    assert few_figures({"eval_accuracy": 0.5}, 1) == {"eval_accuracy": 0.5}


# --- the same script twice, several evaluation sets -----------------------------------------------


def test_a_second_start_says_how_to_go_on_and_how_to_begin_anew(tmp_path: Path) -> None:
    saves = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 5}
    tiny.trainer(tmp_path, **saves).train()
    with pytest.raises(InvalidInput) as caught:
        tiny.trainer(tmp_path, **saves).train()
    assert "train(resume_from_checkpoint=True)" in caught.value.fix
    assert "overwrite_output_dir=True" in caught.value.fix
    (tmp_path / "recipe.yaml").write_text("{}", "utf-8")
    with pytest.raises(InvalidInput, match="dare train --resume"):
        tiny.trainer(tmp_path, **saves).train()
    again = {**saves, "max_steps": 1, "overwrite_output_dir": True}
    tiny.trainer(tmp_path, **again).train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]
    assert len(tiny.lines(tmp_path / "metrics.jsonl")) == 1


def test_a_finished_run_without_checkpoints_is_not_overwritten_either(tmp_path: Path) -> None:
    tiny.trainer(tmp_path, max_steps=2, seed=3).train()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InvalidInput, match="holds a finished run") as caught:
        tiny.trainer(tmp_path, max_steps=2).train()
    assert caught.value.field == "output_dir"
    assert "--overwrite-output-dir true" in caught.value.fix
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    tiny.trainer(tmp_path, max_steps=1, overwrite_output_dir=True).train()
    assert len(tiny.lines(tmp_path / "metrics.jsonl")) == 1


def test_a_run_that_broke_off_is_begun_anew(tmp_path: Path) -> None:
    tiny.trainer(tmp_path, max_steps=2).train()
    (tmp_path / "config.yaml").write_text("steps: 9")
    tiny.trainer(tmp_path, max_steps=1).train()
    assert len(tiny.lines(tmp_path / "metrics.jsonl")) == 1


def test_a_dictionary_of_evaluation_sets(tmp_path: Path) -> None:
    sure, never = tiny.problems(1.0, each=4), tiny.problems(0.0, each=6)
    both = {"sure": sure, "never": never}
    trainer = tiny.trainer(tmp_path, eval_data=both, eval_strategy="steps", eval_steps=1)
    logs = trainer.evaluate()
    assert logs["eval_sure_accuracy"] == 1.0
    assert logs["eval_never_accuracy"] == 0.0
    assert logs["eval_accuracy"] == pytest.approx(0.4)
    (line,) = tiny.lines(tmp_path / "eval.jsonl")
    assert line["by_set"]["never"]["by_problem"] == [0.0] * 6
    assert len(line["by_problem"]) == 10
    assert trainer.evaluate(never)["eval_accuracy"] == 0.0
    trainer.train()
    assert len(tiny.lines(tmp_path / "eval.jsonl")) == 3


# --- how many rollouts, how long ------------------------------------------------------------------


def test_without_a_budget_a_generation_is_what_trl_makes_it(tmp_path: Path) -> None:
    rows = {"rollout_budget": None, "per_device_train_batch_size": 4, "num_generations": 4}
    for given in (
        {"gradient_accumulation_steps": 6},
        {"steps_per_generation": 6, "gradient_accumulation_steps": 6},
        {"generation_batch_size": 24, "gradient_accumulation_steps": 6},
    ):
        args = tiny.config(tmp_path, **rows, **given)
        assert args.curriculum_config().rollout_budget == 24
        assert args.updates_per_generation == 1
    args = tiny.config(tmp_path, **rows, generation_batch_size=24, max_steps=6)
    assert args.updates_per_generation == 6


def test_accumulation_that_disagrees_with_the_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="8 micro-batches") as caught:
        tiny.trainer(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    assert caught.value.field == "gradient_accumulation_steps"


def test_generation_batch_size_and_steps_must_agree(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="give one"):
        tiny.config(tmp_path, generation_batch_size=32, steps_per_generation=3)


def test_epochs_say_how_long(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=-1, num_train_epochs=2)
    prompts, settings = len(trainer.store), trainer.settings
    drawn = settings.rollout_budget * settings.fresh_share / settings.medium.group_size
    assert trainer.args.max_steps == -(-2 * prompts // drawn)
    assert tiny.config(tmp_path, max_steps=-1).max_steps == 200


def test_max_steps_wins_over_epochs_and_says_so(tmp_path: Path, caplog: Any) -> None:
    assert tiny.trainer(tmp_path, max_steps=3, num_train_epochs=2).args.max_steps == 3
    assert "num_train_epochs = 2 is not used" in caplog.text
