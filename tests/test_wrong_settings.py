"""Hundreds of wrong settings, on the command line and in YAML: one line that names the field, exit
code 2, and nothing written."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest
import yaml
from typer.main import get_command

from dare import cli
from dare.config import CurriculumConfig
from dare.config.nested import kinds_of, names_of
from dare.training.recipe import _fields

COMMAND = get_command(cli.app)
"""Built once: typer makes it anew for every call, which takes longer than the refusal."""


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Runs `dare train` with these words and this recipe; checks all that a refusal promises."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(cli, "app", COMMAND)
    monkeypatch.setattr("dare.training.trainer.DareTrainer.train", lambda *_, **__: sys.exit(99))

    def check(field: str, words: list[str], recipe: Any = None, command: str = "train") -> None:
        if recipe is not None:
            text = recipe if isinstance(recipe, str) else yaml.safe_dump(recipe)
            (tmp_path / "mine.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
            words = ["mine.yaml", *words]
        before = contents(tmp_path)
        monkeypatch.setattr(sys, "argv", ["dare", *command.split(), *words])
        shown = f"{words} {recipe!r}"
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert end.value.code == 2, shown
        line = [one for one in err.splitlines() if not one.startswith("[transformers]")]
        assert len(line) == 1, f"{shown}\n{err}"
        assert line[0].startswith("error: "), line
        assert field in line[0], f"{shown}: {line[0]}"
        assert out == "", shown
        assert contents(tmp_path) == before, shown

    return check


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


# --- every field, by what it is not ---------------------------------------------------------------

NUMBER = ["several", True, [0.25], {"x": 3}, float("nan"), float("inf"), "1e", "1-2", 10**400]
WRONG: dict[Any, list[Any]] = {
    int: [*NUMBER, 2.75, "1.5e0"],
    float: [*NUMBER, "12 %", "1,5"],
    bool: ["perhaps", 3, 0.5, [], "tru"],
    str: [["a", "b"], {"a": "b"}],
    list: ["one", 4.5, {"a": 1}],
    dict: [3.5, [1, 2], True],
    Enum: ["nonsuch", 12, ["steps"], "Step s"],
}


def wrong_values(hint: Any) -> list[Any]:
    """Values that none of an annotation's kinds can be read from."""
    kinds = [_kind(kind) for kind in kinds_of(hint) if kind is not type(None)]
    if not set(kinds) <= set(WRONG):
        return []
    values = [value for kind in kinds for value in WRONG[kind]]
    return [value for value in values if not any(_may_be(kind, value) for kind in kinds)]


def _kind(kind: Any) -> Any:
    choice = get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum))
    return Enum if choice else get_origin(kind) or kind


def _may_be(kind: Any, value: Any) -> bool:
    """Whether a command line's text or a file's value may be meant so; of numbers only good ones
    are, and of choices none of the above."""
    if kind is str:  # on a command line any number or word is text
        return not isinstance(value, list | dict)
    if kind in (int, float):
        return value in (3, 12, 0.5, 3.5, 4.5) and not isinstance(value, bool)
    return kind is not Enum and isinstance(value, kind)


def generated() -> list[tuple[str, Any]]:
    """A few wrong values for each field of DareConfig and each setting of the curriculum."""
    found: list[tuple[str, Any]] = []
    for place, (name, hint) in enumerate([*_fields().items(), *names_of(CurriculumConfig).items()]):
        values = wrong_values(hint)
        for turn in range(min(2, len(values))):  # in turn, so that all values have theirs
            found.append((name, values[(2 * place + turn) % len(values)]))
    return found


def test_there_are_hundreds_of_them() -> None:
    assert len(generated()) + len(BOUNDS) + len(SPECIAL) > 400


@pytest.mark.parametrize("part", range(4))
def test_values_of_the_wrong_kind(part: int, refused: Any) -> None:
    settings = names_of(CurriculumConfig)
    for place, (name, value) in enumerate(generated()[part::4]):
        text = value if isinstance(value, str) else json.dumps(value).replace("Infinity", ".inf")
        if place % 2:  # half of them each way
            refused(name.rpartition(".")[2], [f"--{name.replace('_', '-')}", text])
        elif name in settings and name not in _fields():
            refused(name.rpartition(".")[2], [], {"curriculum": {name: value}})
        else:
            refused(name, [], {"training": {name: value}})


# --- numbers of the right kind that mean nothing --------------------------------------------------

BOUNDS: list[tuple[str, Any]] = [
    ("learning_rate", -1e-6), ("learning_rate", "1e3"), ("weight_decay", -0.01),
    ("adam_beta1", 1.0), ("adam_beta1", -0.1), ("adam_beta2", 1.5), ("adam_epsilon", -1e-8),
    ("max_grad_norm", -1.0), ("warmup_steps", -2), ("warmup_steps", 3.5),
    ("max_steps", -5), ("max_steps", "1e12"),
    ("num_train_epochs", 0), ("logging_steps", 0), ("logging_steps", 2.5), ("save_steps", -20),
    ("save_steps", 1.5), ("eval_steps", -1), ("eval_delay", -1), ("save_total_limit", -1),
    ("per_device_train_batch_size", 0), ("per_device_train_batch_size", 48),
    ("per_device_eval_batch_size", -8), ("gradient_accumulation_steps", 0), ("seed", -3),
    ("seed", 2**33), ("data_seed", -1), ("label_smoothing_factor", 1.0), ("ddp_timeout", -5),
    ("dataloader_num_workers", -2), ("dataloader_prefetch_factor", -1), ("local_rank", -2),
    ("torch_empty_cache_steps", 0), ("eval_accumulation_steps", -4), ("neftune_noise_alpha", -5),
    ("temperature", -0.7), ("temperature", 1e4), ("top_p", -0.5), ("top_p", "1.01"), ("top_k", -2),
    ("beta", "-1e-3"), ("epsilon", 0), ("epsilon", 1.2), ("epsilon_high", -0.2),
    ("num_generations", 0), ("num_generations", "1e12"), ("rollout_budget", 1),
    ("rollout_budget", -64), ("max_completion_length", -64), ("num_iterations", -1),
    ("steps_per_generation", -4), ("steps_per_generation", 5), ("unscored_limit", 1.2),
    ("unscored_window", -20), ("generation_rows", 0), ("score_batch_tokens", -5),
    ("eval_temperature", -1e-3), ("eval_temperature", 1e6), ("eval_samples", -2),
    ("eval_samples", 10**9), ("sample_rows", -1), ("optim", "sgdd"), ("log_level", "chatty"),
    ("lr_scheduler_type", "cosin"), ("eval_strategy", "stepwise"), ("save_strategy", "never"),
    ("loss_type", "ppo"), ("importance_sampling_level", "word"), ("hint_conditioning", "none"),
    ("scale_rewards", "groups"), ("report_to", "wandbb"), ("report_to", ["tensorboard", "nope"]),
    ("preset", "dares"), ("generator", "vlm"), ("metric_for_best_model", "loss"),
    ("lr_scheduler_kwargs", {"min_lr": 0.1}), ("lr_scheduler_kwargs", "{broken"),
    ("gradient_checkpointing_kwargs", {"use_reentrant": False, "deep": 1}),
    ("accelerator_config", {"split": True}), ("fsdp", "half_shard"), ("debug", "everything"),
    ("vllm_mode", "remote"), ("vllm_gpu_memory_utilization", 1.5), ("vllm_server_port", 0),
    ("vllm_tensor_parallel_size", 0), ("vllm_server_timeout", 0), ("vllm_max_model_length", -1),
    ("vllm_importance_sampling_mode", "sequence"), ("vllm_importance_sampling_clip_max", 0),
    ("vllm_importance_sampling_clip_min", 3.5), ("vllm_model_impl", "mine"),
    ("auto_find_batch_size", True), ("remove_unused_columns", True), ("tf32", True),
    ("reward_weights", [0.0]), ("reward_weights", [0.5, 0.5]), ("reward_weights", []),
    ("model_init_kwargs", {"dtype": "float12"}), ("system_prompt", "maths"),
    ("train_sampling_strategy", "backwards"), ("ddp_backend", "pigeon"), ("deepspeed", "no.json"),
    ("selection.sharpness", -2), ("selection.eta", 1.5), ("selection.rest", 0.5),
    ("selection.explore", "always"), ("estimator.name", "dar"), ("estimator.name", "no.such:Name"),
    ("estimator.refresh_share", -0.5), ("estimator.references", 1), ("buffer.groups", -1),
    ("cold_start.group_size", 1), ("hard.clip_low", 2), ("medium.max_tokens_ratio", 0),
    ("easy.below", 0.95), ("fresh_share", 0), ("smallest_group", 1), ("prompts_per_step", -8),
    ("replay.max_age", -1), ("replay.priority", -1), ("advantage.std_floor", -1e-6),
    ("group_sizes", "equal"), ("advantage.scale_rewards", "std"),
]  # fmt: skip


@pytest.mark.parametrize("way", ["words", "file"])
def test_values_out_of_their_range(way: str, refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dare.training.recipe.load_data", lambda *_: [{"prompt": "1", "answer": 1}])
    base = {"training": {"rollout_budget": 64, "per_device_train_batch_size": 64}}
    base["training"]["max_completion_length"] = 64
    for name, value in BOUNDS:
        field = name.rpartition(".")[2] if "." in name else name
        ours = name in names_of(CurriculumConfig) and name not in _fields()
        if way == "words":
            text = value if isinstance(value, str) else json.dumps(value)
            refused(field, [f"--{name}={text}"], base)
        elif ours:
            refused(field, [], {**base, "curriculum": {name: value}})
        else:
            refused(field, [], {"training": {**base["training"], name: value}})


# --- recipes, options, data and adapters ----------------------------------------------------------

FEW = {"data": {"tasks": {"count": 8, "seed": 0}}, "training": {"max_completion_length": 64}}
FEW_TOKENIZED, FEW_NUMBERED, FEW_EAGER = (
    {**FEW, "training": {**FEW["training"], **more}}
    for more in (
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": {3: True}},
        {"model_init_kwargs": {"attn_implementation": "eager"}},
    )
)
SPECIAL: list[tuple[str, list[str], Any]] = [
    ("recipe", ["nosuch"], None),
    ("recipe", ["./nosuch.yml"], None),
    ("recipe", ["a.yaml", "b.yaml"], None),
    ("recipe", [], ""),
    ("recipe", [], "- model: pocket"),
    ("recipe", [], "just words"),
    ("recipe", [], "model: {pocket"),
    ("recipe", [], "model: \x07"),
    ("recipe", [], "a: &a [*a]\nb: 2024-99-99"),
    ("recipe", [], "[" * 5000),
    ("recipe", [""], None),
    ("'model' is given twice", [], "model: pocket\nmodel: tiny"),
    ("'seed' is given twice", [], "training:\n  seed: 1\n  seed: 2"),
    ("selection.eta", [], {"curriculum": {"selection.eta": 0.1, "selection": {"eta": 0.2}}}),
    ("model = 2024-01-01:", [], "model: 2024-01-01"),
    ("--max-prompt-length", ["--max-prompt-length", "[1"], None),
    ("'--processes'", ["--processes", "many"], None),
    ("success_threshold", ["--success-threshold", "true", "--max-completion-length", "64"], None),
    ("modell", [], {"modell": "pocket"}),
    ("7", [], {7: "pocket"}),
    ("model", [], {"model": ["pocket"]}),
    ("model", [], {"model": None}),
    ("model", [], {"model": 3.5}),
    ("model", ["--model", "./no/such/folder"], FEW),
    ("reward", [], {"reward": ["maths"]}),
    ("reward", ["--reward", "maths"], None),
    ("reward", ["--reward", "json:nothing"], None),
    ("reward", ["--reward", "no.module:f"], None),
    ("preset", [], {"preset": 4}),
    ("preset", ["--preset", ""], None),
    ("training", [], {"training": "fast"}),
    ("training", [], {"training": [{"seed": 1}]}),
    ("training", ["--training", "7"], None),
    ("curriculum", [], {"curriculum": ["selection.eta"]}),
    ("curriculum", [], {"training": {"curriculum": "easy"}, "curriculum": {"tiers": True}}),
    ("selection", [], {"curriculum": {"selection": 8}}),
    ("selecton", [], {"curriculum": {"selecton.eta": 0.1}}),
    ("eta", [], {"curriculum": {"selection": {"eta": {"x": 1}}}}),
    ("lerning_rate", [], {"training": {"lerning_rate": 0.1}}),
    ("lerning-rate", ["--lerning-rate", "0.1"], None),
    ("max-steps", ["--max-steps"], None),
    ("learning-rate", ["--learning-rate", "[1"], None),
    ("data", ["--data", "{tasks"], None),
    ("data", [], {"data": None}),
    ("data", [], {"data": ["a.jsonl"]}),
    ("data", [], {"data": {}}),
    ("data", [], {"data": {"split": "train"}}),
    ("data", ["--data", "nowhere.parquet"], None),
    ("data.colums", [], {"data": {"path": "x.jsonl", "colums": {}}}),
    ("data.columns", [], {"data": {"path": "x.jsonl", "columns": "prompt"}}),
    ("data.split", [], {"data": {"path": "x.jsonl", "split": 3}}),
    ("data.tasks", [], {"data": {"tasks": 64}}),
    ("data.tasks", [], {"data": {"tasks": {}}}),
    ("data.tasks", [], {"data": {"tasks": {"count": 64}}}),
    ("data", [], {"data": {"tasks": {"count": 64, "seed": 0}, "path": "x.jsonl"}}),
    ("data.tasks.count", [], {"data": {"tasks": {"count": -64, "seed": 0}}}),
    ("data.tasks.count", [], {"data": {"tasks": {"count": "many", "seed": 0}}}),
    ("data.tasks.count", [], {"data": {"tasks": {"count": 1e15, "seed": 0}}}),
    ("data.tasks.seed", [], {"data": {"tasks": {"count": 64, "seed": -1}}}),
    ("data.tasks.seed", [], {"data": {"tasks": {"count": 64, "seed": [0]}}}),
    ("data.tasks.split", [], {"data": {"tasks": {"count": 64, "seed": 0, "split": "dev"}}}),
    ("data.tasks.levels", [], {"data": {"tasks": {"count": 64, "seed": 0, "levels": 3}}}),
    ("data.tasks.levels", [], {"data": {"tasks": {"count": 64, "seed": 0, "levels": [99]}}}),
    ("data.tasks.families", [], {"data": {"tasks": {"count": 9, "seed": 0, "families": ["x"]}}}),
    ("data.tasks.size", [], {"data": {"tasks": {"count": 64, "seed": 0, "size": 3}}}),
    ("train_dataset", ["--data", "{tasks: {count: 0, seed: 0}}"], None),
    ("eval_data", [], {"data": {"tasks": {"count": 8, "seed": 0}}, "eval_data": 5}),
    ("eval_data", ["--eval-data", "nowhere.jsonl", "--data={tasks: {count: 8, seed: 0}}"], None),
    ("eval_data.tasks.count", ["--eval-data={tasks: {count: -1, seed: 0}}"], None),
    ("peft", [], {"peft": [16]}),
    ("peft.rank", [], {"peft": {"rank": 16}}),
    ("peft.r", [], {"peft": {"r": "sixteen"}}),
    ("peft.lora_dropout", [], {"peft": {"lora_dropout": "none"}}),
    ("peft.target_modules", [], {"peft": {"target_modules": 5}}),
    ("peft.lora_dropout", [], {"peft": {"lora_dropout": -0.5}}),
    *(("peft.lora_alpha", [], {"peft": {"lora_alpha": alpha}}) for alpha in (0, -5)),
    *(
        (
            "peft.target_parameters = 'nope'",
            [],
            {**FEW, "peft": {**more, "target_parameters": ["nope"]}},
        )
        for more in ({}, {"target_modules": ["q_proj"]})
    ),
    *(
        (
            f"peft.trainable_token_indices = {token}",
            [],
            {**FEW, "peft": {"trainable_token_indices": [1, token]}},
        )
        for token in (-1, 10**6)
    ),
    *(("curriculum.seed", [], {"curriculum": {"seed": seed}}) for seed in (-5, 5, 2**70, "x")),
    *(("eval_data = ", [], {**FEW, "eval_data": nothing}) for nothing in ({}, "")),
    ("eval_data = ''", ["--eval-data", ""], FEW),
    *(
        ("disable_tqdm", [], {**FEW, "training": {"disable_tqdm": odd}})
        for odd in ([1, 2], "maybe")
    ),
    (
        "--learning-rate = '0.2': is given twice",
        ["--learning-rate", "0.1", "--learning-rate", "0.2"],
        None,
    ),
    (
        "--learning_rate = '0.2': is given twice",
        ["--learning-rate=0.1", "--learning_rate=0.2"],
        None,
    ),
    *(("max_steps", [], {"training": {"max_steps": odd}}) for odd in ("\u0663", " 5 ", "5\u00a0")),
    ("peft.task_type", [], {"peft": {"task_type": "SEQ_CLS"}}),
    ("peft.r =", [], {**FEW, "peft": {"r": 0}}),
    ("peft.target_modules", [], {**FEW, "peft": {"target_modules": ["nowhere"]}}),
    ("peft", [], {**FEW, "peft": {"target_modules": "["}}),
    ("peft", [], {**FEW, "peft": {"inference_mode": True}}),
    ("peft.modules_to_save", [], {**FEW, "peft": {"modules_to_save": ["nowhere"]}}),
    ("chat_template_kwargs.tokenize", [], FEW_TOKENIZED),
    ("model_init_kwargs", [], FEW_EAGER),
    ("chat_template_kwargs", [], FEW_NUMBERED),
    ("report_to", ["--report-to", "mlflow"], FEW),
    ("--resume", ["--resume", "nowhere"], None),
    ("--resume", ["--resume", "mine.yaml"], {"model": "pocket"}),
    ("output_dir", ["--output-dir", "mine.yaml"], FEW),
    ("output_dir", ["--output-dir", "mine.yaml/run"], FEW),
    ("output_dir", ["--output-dir", "''"], FEW),
    ("eval_strategy", ["--eval-strategy", "steps"], FEW),
    ("load_best_model_at_end", ["--load-best-model-at-end", "yes", "--eval-steps", "7"], None),
    ("bf16", ["--fp16", "true", "--bf16", "true"], None),
    ("epsilon_high", ["--loss-type", "cispo", "--epsilon-high", "0.5"], None),
    ("max_steps", ["--num-iterations", "7"], None),
]


OTHERS: list[tuple[str, str, list[str]]] = [
    ("--variant", "study estimators", ["--variant", "K=--estimator.name 'paper"]),
    ("--out", "study estimators", ["--out", "there.jsonl"]),
    ("--seeds", "study estimators", ["--seeds", "9" * 20]),
    ("--rollouts", "study estimators", ["--rollouts", "9" * 20]),
    ("--prompts", "study estimators", ["--prompts", "5000", "--estimators", "dare,teacher"]),
    ("--arm", "study methods", ["--arm", 'mine=dare --tiers "true']),
    ("--base", "study methods", ["--presets", "grpo,dare", "--base", "paper"]),
    ("--workers", "study methods", ["--workers", "-1"]),
    ("--devices", "study methods", ["--devices", "cuda"]),
    ("--out", "study sweep", ["--field", "eta", "--values", "0,1", "--out", ""]),
    ("--at", "teacher measure", ["--at", "0,4000"]),
    ("--hidden", "teacher fit", ["there.jsonl", "--hidden", "9999999999"]),
    ("--prompt-tokens", "plan", ["--prompt-tokens", "inf"]),
    ("--folder", "quickstart", ["--folder", "there.jsonl"]),
    ("--data", "init", ["--data", "nowhere.csv"]),
    ("--gpu", "init", ["--data", "there.jsonl", "--reward", "own:score", "--gpu", "Abacus"]),
    ("--reward", "init", ["--data", "there.jsonl", "--reward", "own:", "--model", "a: b"]),
    ("--seeds", "study methods", ["--seeds", "1000000"]),
    ("--model", "init", ["--data", "there.jsonl", "--model", ""]),
    ("columns.prompt", "data inspect", ["there.jsonl", "--columns", "prompt=nothing"]),
    ("--columns", "data inspect", ["there.jsonl", "--columns", "answer=prompt,answer=answer"]),
    ("--top-p", "eval", ["pocket", "--benchmarks", "tasks", "--top-p", "1.5"]),
    ("--column", "eval", ["pocket", "--benchmarks", "tasks", "--column", "text"]),
    ("No such command", "trian", []),
    ("--seeds", "study methods", ["--seeds", "several"]),
]


@pytest.mark.parametrize("part", range(2))
def test_other_commands(part: int, refused: Any, tmp_path: Path) -> None:
    row = {"prompt": "1+1=", "answer": "2", "pass_rate": 0.5}
    (tmp_path / "there.jsonl").write_text(f"{json.dumps(row)}\n")
    for field, command, words in OTHERS[part::2]:
        refused(field, words, command=command)


@pytest.mark.parametrize("part", range(4))
def test_parts_of_a_recipe_options_and_combinations(part: int, refused: Any) -> None:
    for field, words, recipe in SPECIAL[part::4]:
        refused(field, words, recipe)
