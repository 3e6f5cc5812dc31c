"""`dare train`: words in any order, misspelt settings, a dry run, a run and its resume."""

import json
import platform
import signal
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest
import yaml

import ranks
from dare import DareConfig, InvalidInput
from dare.commands.options import split_options
from dare.training.from_trl import MEANT
from dare.training.recipe import PARTS, build, change, config_of, load_recipe
from dare.training.workload import workload_of

SMALL = [
    "--eval-strategy=no",
    "--eval-on-start=false",
    "--rollout-budget=64",
    "--per-device-train-batch-size=32",
    "--data={tasks: {count: 64, seed: 0}}",
    "--cold_start.references=4",
]


Call = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("words", "recipe", "options"),
    [
        (["quickstart"], "quickstart", []),
        (["my.yaml", "--a", "1"], "my.yaml", ["--a", "1"]),
        (["--a", "1", "my.yaml"], "my.yaml", ["--a", "1"]),
        (["--a=1", "my.yaml", "--b", "2"], "my.yaml", ["--a=1", "--b", "2"]),
        (["--a", "1"], "quickstart", ["--a", "1"]),
    ],
)
def test_the_recipe_is_found_among_the_options(words, recipe, options):
    assert split_options(words) == (recipe, options)


def test_options_reach_the_right_part():
    options = ["--learning-rate", "1e-5", "--selection.kappa", "8", "--preset", "previous-fr"]
    recipe = change(load_recipe("quickstart"), [*options, "--save-strategy", "no"])
    config = config_of(recipe)
    assert config.learning_rate == 1e-5
    assert config.preset == "previous-fr"
    assert config.curriculum_config().selection.kappa == 8
    assert config.save_strategy == "no"


def test_words_of_a_setting_may_be_joined_by_dashes():
    words = ["--fresh-share", "0.5", "--hard.max-tokens-ratio", "0.5", "--estimator.clip", "2"]
    changed = change({}, words)["curriculum"]
    assert changed == {"fresh_share": 0.5, "hard.max_tokens_ratio": 0.5, "estimator.clip": 2}


@pytest.mark.parametrize(
    ("given", "meant"),
    [("batch", "batch"), ("False", "none"), ("true", "group"), ("none", "none")],
)
def test_scale_rewards_has_the_values_that_trl_takes(given, meant):
    config = config_of(change(load_recipe("quickstart"), ["--scale-rewards", given]))
    assert config.curriculum_config().advantage.scale_rewards == meant
    with pytest.raises(InvalidInput, match=r"advantage\.scale_rewards"):
        replace(config, scale_rewards="groups").curriculum_config()


@pytest.mark.parametrize(
    ("option", "held", "expected"),
    [
        (["--medium.clip-high", "0.4"], {}, (0.1, 0.4)),
        (["--medium.clip-low", "0.3"], {}, (0.3, 0.1)),  # the side that was not asked for stays
        (["--medium.clip-low", "0.3"], {"medium": {"clip_high": 0.5}}, (0.3, 0.5)),
        (["--epsilon-high", "0.4"], {"medium.clip_high": 0.5}, (0.1, 0.4)),
        ([], {"medium": {"clip_high": 0.5}}, (0.1, 0.5)),
        ([], {}, (0.1, 0.1)),
    ],
)
def test_a_clip_range_that_is_told_wins_over_epsilon(option, held, expected) -> None:
    recipe = load_recipe("quickstart")
    recipe |= {"curriculum": held, "training": {**recipe["training"], "epsilon": 0.1}}
    medium = config_of(change(recipe, option)).curriculum_config().medium
    assert (medium.clip_low, medium.clip_high) == expected


def test_the_seed_reaches_the_run_and_its_curriculum():
    config = config_of(change(load_recipe("quickstart"), ["--seed", "7"]))
    assert config.seed == 7
    assert config.curriculum_config().seed == 7


@pytest.mark.parametrize(
    ("option", "near"),
    [("--lerning-rate", "learning_rate"), ("--selection.kapa", "selection.kappa")],
)
def test_a_misspelt_setting_names_the_nearest(option, near):
    with pytest.raises(InvalidInput, match=near):
        change(load_recipe("quickstart"), [option, "1"])


def test_names_that_settings_have_elsewhere_are_understood():
    for option, meant in {
        "--lr": "learning_rate",
        "--max-new-tokens": "max_completion_length",
    }.items():
        with pytest.raises(InvalidInput, match=f"did you mean '{meant}'"):
            change(load_recipe("quickstart"), [option, "1"])
    with pytest.raises(InvalidInput, match="did you mean 'learning_rate'"):
        DareConfig("unused", lr=1e-5)
    for recipe, where in (({"lr": 1}, "recipe: lr"), ({"training": {"lr": 1}}, "training.lr")):
        with pytest.raises(InvalidInput, match="'learning_rate', under `training:`") as caught:
            config_of(recipe)
        assert caught.value.field == where
    known = {*signature(DareConfig).parameters, *PARTS}
    assert set(MEANT.values()) <= known
    assert not set(MEANT) & known


def test_a_recipe_that_is_not_there_is_named(dare):
    code, _, errors = dare("train", "quickstar")
    assert code == 2
    assert "quickstart" in errors


def test_a_dry_run_shows_the_plan_and_writes_nothing(dare, tmp_path):
    code, shown, errors = dare("train", "--dry-run", *SMALL)
    assert code == 0, errors
    assert "8 prompts, 64 rollouts" in shown
    assert "tier" not in shown  # off: all would be called medium
    assert list(tmp_path.iterdir()) == []
    assert "medium" in dare("train", "--dry-run", "--tiers=true", *SMALL)[1]


def test_a_run_leaves_its_recipe_and_can_be_resumed(dare, tmp_path):
    words = ["--output-dir", "mine", "--max-steps=2", "--save-steps=1", *SMALL]
    # In a process of its own, as a user has it: what it leaves must be all that is needed.
    done = ranks.run("-m", "dare", "train", "quickstart", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dare report mine" in done.stdout.splitlines()[-1]
    metrics = (tmp_path / "mine" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["step"] for line in metrics] == [0, 1]
    code, _, errors = dare("train", "--resume", "mine", "--max-steps=3")
    assert code == 0, errors
    metrics = (tmp_path / "mine" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["step"] for line in metrics] == [0, 1, 2]


TINY = [*SMALL[2:], "--max-steps=3", "--save-steps=1", "--eval-on-start=true", "--eval-steps=2"]
TINY += ["--eval-data={tasks: {count: 8, seed: 1}}", "--output-dir", "mine"]
STOPS = """
import os, signal
from dare.rewards import boxed_reward

def reward(completions, answer, **columns):
    if os.path.exists("stop"):
        os.remove("stop")
        os.kill(os.getpid(), signal.SIGTERM)
    return boxed_reward(completions=completions, answer=answer)
"""


@pytest.fixture
def stopped(dare, tmp_path, monkeypatch):
    """A run that SIGTERM ended after its first step, as `dare train` leaves it."""
    (tmp_path / "stops.py").write_text(STOPS)
    (tmp_path / "stop").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, errors = dare("train", "--reward", "stops:reward", *TINY)
    assert code == 128 + signal.SIGTERM, errors
    assert "done" not in out
    assert "stopped at step 1 of 3: dare train --resume mine --trust" in errors
    return tmp_path / "mine"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_stopped_run_says_so_and_a_refused_start_changes_nothing(dare, stopped):
    before = contents(stopped)
    (stopped.parent / "other.yaml").write_text("model: pocket")
    resume = ["--trust", "--resume", "mine"]
    for words, field in [
        (TINY, "output_dir"),
        (
            ["--resume", "mine"],
            "recipe = 'mine/recipe.yaml': names code that this command would run (stops:reward)",
        ),
        ([*TINY, "--reward", "math"], "output_dir"),
        ([*resume, "--selection.sharpness", "3"], "selection.sharpness"),
        ([*resume, "--learning-rate", "1e-2"], "learning_rate"),
        ([*resume, "--optim", "sgd"], "optim"),
        ([*resume, "--model", "other"], "--model"),
        ([*resume, "--peft", "{r: 4}"], "--peft"),
        ([*resume, "--output-dir", "elsewhere"], "--output-dir"),
        ([*resume, "other.yaml"], "recipe"),
        ([*resume, "--lr-scheduler-kwargs", "{nonsense: 1}"], "lr_scheduler"),
        ([*resume, "--eval-data", "nowhere.jsonl"], "eval_data"),
    ]:
        code, out, errors = dare("train", *words)
        assert (code, out) == (2, ""), words
        assert f"error: {field}" in errors, errors
        assert contents(stopped) == before, words
    assert sorted(path.name for path in stopped.parent.iterdir() if path.is_dir()) == [
        *(["__pycache__"] if (stopped.parent / "__pycache__").exists() else []),
        "mine",
    ]
    code, out, errors = dare("train", *resume)  # with its own reward
    assert (code, "done" in out) == (0, True), errors
    lines = (stopped / "eval.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 2, 3]
    assert yaml.safe_load((stopped / "recipe.yaml").read_text())["reward"] == "stops:reward"


@pytest.mark.parametrize("text", ["", "[]", "{", "model: [pocket"])
def test_a_damaged_recipe_does_not_become_another_run(dare, text, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.yaml").write_text(text)
    code, _, errors = dare("train", "--resume", "mine")
    assert code == 2
    assert "recipe.yaml" in errors


def test_a_recipe_with_lora_builds_adapters(tmp_path):
    recipe = change(load_recipe("quickstart"), [*SMALL, "--output-dir", str(tmp_path / "lora")])
    trainer = build({**recipe, "peft": {"r": 2, "target_modules": ["q_proj", "v_proj"]}})
    trained = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ({"max_steps": 5}, "belongs under `training:`"),
        ({"selection": {"kappa": 3}}, "belongs under `curriculum:`"),
        ({"use_vllm": True}, "belongs under `training:`"),
        ({"lora_alpha": 32}, "belongs under `peft:`"),
        ({"training": {"kappa": 3}}, "curriculum:`, as selection.kappa"),
        ({"training": {"reward": "math"}}, "top level"),
        ({"curriculum": {"learning_rate": 1.0}}, "belongs under `training:`"),
        ({"curriculum": {"selections.kappa": 1.0}}, "did you mean 'selection'"),
        ({"peft": {"lerning_rate": 1.0}}, "is no setting"),
    ],
)
def test_a_misplaced_key_says_where_it_belongs(recipe, says, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(recipe), "utf-8")
    with pytest.raises(InvalidInput) as caught:
        build(change(load_recipe(str(path)), ["--output-dir", str(tmp_path / "run")]))
    assert says in caught.value.fix


def test_a_recipe_may_name_several_evaluation_sets(tmp_path):
    sets = "{few: {tasks: {count: 8, seed: 1}}, more: {tasks: {count: 16, seed: 2}}}"
    words = [*SMALL, "--output-dir", str(tmp_path), "--eval-data", sets]
    recipe = change(load_recipe("quickstart"), words)
    assert {name: len(rows) for name, rows in build(recipe).eval_dataset.items()} == {
        "few": 8,
        "more": 16,
    }
    assert workload_of(recipe).workload.generated_at_most == 16


def test_doctor_reports_as_json_and_passes(dare):
    code, shown, errors = dare("doctor", "--json")
    assert code == 0, errors
    report = json.loads(shown)
    assert report["kernel"] == platform.release()
    assert report["zero_drift"]["passed"]
    assert report["zero_drift"]["worst_log_ratio"] < 1e-3
