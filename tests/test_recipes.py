"""The shipped recipes: each starts, fits the card that it names, and says how."""

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import Qwen2Config, SmolLM3Config, TrainingArguments

import tiny
from dare.commands.recipe import explained
from dare.policy.gpus import card_named
from dare.policy.memory import plan_memory, usable
from dare.training.config import DareConfig
from dare.training.recipe import PARTS, load_recipe, recipe_names
from dare.training.workload import memory_lines, workload_of

QWEN = {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "tie_word_embeddings": True,
}
LARGE = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "tie_word_embeddings": False,
}
SMOL = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 11008,
    "tie_word_embeddings": True,
}
# The configurations that the hub has under these names.
CONFIGS: dict[str, Any] = {
    "Qwen/Qwen2.5-1.5B-Instruct": (Qwen2Config, QWEN),
    "Qwen/Qwen2.5-Math-1.5B": (Qwen2Config, QWEN),
    "Qwen/Qwen2.5-Coder-1.5B": (Qwen2Config, QWEN),
    "Qwen/Qwen2.5-Math-7B": (Qwen2Config, LARGE),
    "HuggingFaceTB/SmolLM3-3B-Base": (SmolLM3Config, SMOL),
}
REAL = [name for name in recipe_names() if name != "quickstart"]


Call = Callable[..., tuple[int, str, str]]
SMALL = [
    "--rollout-budget=64",
    "--per-device-train-batch-size=32",
    "--eval-strategy=no",
    "--eval-on-start=false",
]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def text_of(name: str) -> str:
    return resources.files("dare").joinpath("recipes", f"{name}.yaml").read_text("utf-8")


def arithmetic(name: str, card: str, folder: Path) -> list[str]:
    """The recipe's memory by phase, as its comment has it."""
    recipe = load_recipe(name)
    kind, values = CONFIGS[recipe["model"]]
    kind(architectures=[kind.__name__.replace("Config", "ForCausalLM")], **values).save_pretrained(
        folder
    )
    local = {name: part for name, part in recipe.items() if name not in ("data", "eval_data")}
    local["model"] = str(folder)
    limit = usable(card_named(card).bytes)
    workload = workload_of(local, card=card_named(card)).workload
    assert plan_memory(workload, limit).peak.total <= limit
    title = f'# Memory on one {card} in GB (`dare plan {name} --gpu "{card}"`):'
    return [title, *memory_lines(workload, limit)]


@pytest.mark.parametrize("name", REAL)
def test_the_memory_in_the_comment_is_what_is_planned_and_fits(name: str, tmp_path: Path) -> None:
    text = text_of(name)
    card = re.search(r"# Memory on one (.+?) in GB", text)
    assert card
    assert "\n".join(arithmetic(name, card[1], tmp_path)) in text


@pytest.mark.parametrize("name", REAL)
def test_a_dry_run_shows_the_first_step(name: str, tmp_path: Path, dare: Call) -> None:
    """With a small model and a few rows in place of what would be fetched."""
    recipe = load_recipe(name)
    model, data = tmp_path / "model", tmp_path / "rows.jsonl"
    tiny.blank(max_position_embeddings=8192).save_pretrained(model)
    tiny.tokenizer().save_pretrained(model)
    tests = {"tests": {"inputs": ["1\n"], "outputs": ["1\n"]}} if recipe["reward"] == "code" else {}
    write_rows(data, [{"prompt": f"{n}+1=", "answer": f"#### {n}", **tests} for n in range(600)])
    words = ["--model", str(model), "--data", str(data), "--eval-data", str(data), "--dry-run"]
    code, shown, errors = dare("train", name, "--use-cpu", "true", *words)
    assert code == 0, errors
    assert "first plan" in shown
    assert "600 prompts in all" in shown


def test_a_recipe_has_all_that_a_run_needs() -> None:
    for name in REAL:
        recipe = yaml.safe_load(text_of(name))
        assert {"model", "data", "reward", "preset", "training"} <= set(recipe)
        assert "<- the one edit" in text_of(name)


# --- recipes of one's own -------------------------------------------------------------------------


def test_init_train_report(tmp_path: Path, dare: Call) -> None:
    """On rows and with a reward of one's own, whose file is begun; nothing is edited."""
    rows = [{"question": f"Compute {n} + 1.", "gold": str(n + 1)} for n in range(300)]
    write_rows(tmp_path / "mine.jsonl", rows)
    words = ["--columns", "prompt=question,answer=gold", "--reward", "scoring:score"]
    code, shown, errors = dare("init", "--data", "mine.jsonl", *words, "--out", "mine.yaml")
    assert code == 0, errors
    assert "wrote mine.yaml and scoring.py" in shown
    text = (tmp_path / "mine.yaml").read_text("utf-8")
    assert "300 rows; reward functions get" in text
    assert "# Memory" in text
    code, shown, errors = dare(
        "train", "mine.yaml", "--trust", "--max-steps", "2", "--save-steps", "1"
    )
    assert code == 0, errors
    assert "dare report runs/mine" in shown
    assert dare("report", "runs/mine")[0] == 0
    # From elsewhere the module beside the recipe is still found.
    (tmp_path / "else").mkdir()
    os.chdir(tmp_path / "else")
    sys.modules.pop("scoring")
    sys.path[:] = [folder for folder in sys.path if folder != str(tmp_path)]
    data = f"{{path: {tmp_path / 'mine.jsonl'}, columns: {{prompt: question, answer: gold}}}}"
    words = ["--trust", "--resume", "../runs/mine", "--max-steps", "3", "--data", data]
    code, _, errors = dare("train", *words)
    assert code == 0, errors


def test_init_takes_the_model_apart_where_its_configuration_is_here(
    tmp_path: Path, dare: Call
) -> None:
    Qwen2Config(architectures=["Qwen2ForCausalLM"], **QWEN).save_pretrained(tmp_path / "model")
    write_rows(tmp_path / "mine.jsonl", [{"prompt": "1+1=", "answer": "2"}])
    given = ["init", "--data", "mine.jsonl", "--model", "model", "--gpu", "24GB"]
    code, _, errors = dare(*given)
    assert code == 0, errors
    text = (tmp_path / "recipe.yaml").read_text("utf-8")
    assert "#   train: weights 3.2" in text
    assert load_recipe("recipe.yaml")["peft"]["r"] == 32
    code, _, errors = dare(*given)
    assert code == 2
    assert "is there already" in errors
    assert dare(*given, "--full", "--out", "full.yaml")[0] == 0
    assert "peft" not in load_recipe("full.yaml")
    assert dare(*given, "--reward", "no such", "--out", "other.yaml")[0] == 2
    assert not (tmp_path / "other.yaml").exists()


NOWHERE = (
    "",
    " ",
    "*.jsonl",
    "[]",
    "=",
    ",",
    "mine.jsonl/x",
    "s3://",
    "~nobody/x",
    "a b",
    "..",
    "-",
    "x" * 97,
)


@pytest.mark.parametrize(
    ("option", "word"),
    [
        *((option, word) for option in ("--data", "--eval-data") for word in ("*", *NOWHERE)),
        *(("--model", word) for word in ("", " ", "*", "/no/such/x", "./x", "~none/x", "a/b/c")),
        *(("--model", word) for word in ("mine.jsonl", "mine.jsonl/x", "a b", "-", "x" * 97)),
        *(("--columns", word) for word in ("", ",", " , ")),
        *((option, "a\udcff") for option in ("--data", "--eval-data", "--model", "--columns")),
    ],
)
def test_init_writes_no_recipe_that_could_not_run(
    option: str, word: str, tmp_path: Path, dare: Call
) -> None:
    write_rows(tmp_path / "mine.jsonl", [{"prompt": "1+1=", "answer": "2"}])
    (tmp_path / "notes.txt").touch()
    if option == "--data" and word == "*.jsonl":
        word = "*.csv"
    if option == "--eval-data" and word == "*.jsonl":
        word = "[a].jsonl"
    words = {"--data": "mine.jsonl", "--reward": "mine:score", option: word}
    code, _, errors = dare("init", *(each for pair in words.items() for each in pair))
    assert (code, errors.count("\n")) == (2, 1), errors
    assert errors.startswith(f"error: {option}")
    assert sorted(os.listdir()) == ["mine.jsonl", "notes.txt"]


@pytest.mark.parametrize("name", ["\ud800", "\x1b[2J", "two\nlines: [", "{memory}"])
def test_names_of_columns_do_no_harm_to_the_recipe(name: str, tmp_path: Path, dare: Call) -> None:
    write_rows(tmp_path / "mine.jsonl", [{"prompt": "1+1=", "answer": "2", name: "3"}])
    code, _, errors = dare("init", "--data", "mine.jsonl", "--reward", "mine:score")
    if code == 0:
        assert load_recipe("recipe.yaml")["data"].endswith("mine.jsonl")
        compile((tmp_path / "mine.py").read_text("utf-8"), "mine.py", "exec")
    else:  # refused with the data
        assert "mine.jsonl row 1" in errors
        assert os.listdir() == ["mine.jsonl"]


def test_a_recipe_may_be_called_anything(dare: Call, tmp_path: Path) -> None:
    write_rows(tmp_path / "mine.jsonl", [{"prompt": "1+1=", "answer": "2"}])
    assert dare("init", "--data", "mine.jsonl", "--out", "a: b # c.yaml")[0] == 0
    assert load_recipe("a: b # c.yaml")["training"]["output_dir"] == "runs/a: b # c"


def test_columns_are_those_of_both_files(tmp_path: Path, dare: Call) -> None:
    rows = [{"task": f"{n}+1=", "expected": str(n + 1)} for n in range(8)]
    write_rows(tmp_path / "mine.jsonl", rows)
    write_rows(tmp_path / "held.jsonl", rows)
    given = ["init", "--data", "mine.jsonl", "--eval-data", "held.jsonl"]
    code, _, errors = dare(*given)
    assert (code, "--columns prompt=NAME" in errors) == (2, True), errors
    code, _, errors = dare(*given, "--columns", "prompt=task,answer=expected")
    assert code == 0, errors
    columns = {"prompt": "task", "answer": "expected"}
    assert load_recipe("recipe.yaml")["eval_data"] == {"path": "held.jsonl", "columns": columns}
    write_rows(tmp_path / "held.jsonl", [{"text": "1+1=", "expected": "2"}])
    words = ["--columns", "prompt=task,answer=expected", "--out", "other.yaml"]
    code, _, errors = dare(*given, *words)
    assert (code, "--eval-data" in errors) == (2, True), errors
    assert not (tmp_path / "other.yaml").exists()


def test_a_folder_that_is_not_there_is_not_taken_for_a_hub_id(dare: Call) -> None:
    code, _, errors = dare("train", "quickstart", "--model", "./no/model", "--max-steps", "1")
    assert (code, errors.count("\n")) == (2, 1), errors
    assert "model = './no/model': there is no such folder" in errors


def test_init_says_what_it_could_not_find_out(tmp_path: Path, dare: Call) -> None:
    (tmp_path / "empty").mkdir()
    write_rows(tmp_path / "mine.jsonl", [{"prompt": f"{n}+1=", "answer": "2"} for n in range(80)])
    given = ["init", "--data", "mine.jsonl", "--gpu", "24GB"]
    code, shown, errors = dare(*given, "--model", "empty")
    assert (code, "wrote recipe.yaml" in shown) == (0, True), errors
    assert "without an estimate of memory: model = 'empty'" in errors
    code, _, errors = dare(*given, "--out", "small.yaml")
    assert code == 0, errors
    assert "estimate of memory" not in errors
    assert "pocket, the built-in policy, knows" in errors
    text = (tmp_path / "small.yaml").read_text("utf-8")
    assert "max_steps: 30  # each prompt about three times" in text


def test_an_estimator_beside_the_recipe_is_found(tmp_path: Path, dare: Call) -> None:
    (tmp_path / "apart").mkdir()
    own = "from dare.curriculum.estimators.baselines import UniformEstimator as Mine\n"
    (tmp_path / "apart" / "lies_beside.py").write_text(own, "utf-8")
    recipe = {**load_recipe("quickstart"), "curriculum": {"estimator.name": "lies_beside:Mine"}}
    (tmp_path / "apart" / "own.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    code, _, errors = dare("train", "apart/own.yaml", "--trust", "--dry-run", *SMALL)
    assert code == 0, errors
    words = ["apart/own.yaml", "--trust", "--dry-run", *SMALL]
    code, _, errors = dare("train", *words, "--reward", "absent:f")
    assert code == 2
    assert "absent" in errors


def test_every_key_is_explained(dare: Call) -> None:
    keys = {key for key, _, _ in explained()}
    given = set(PARTS)
    given |= {f"training.{item.name}" for item in dataclasses.fields(DareConfig) if item.init}
    assert given <= keys
    assert "curriculum.selection.sharpness" in keys
    own = {item.name for item in dataclasses.fields(TrainingArguments)}
    unsaid = [key for key, _, text in explained() if not text and key.partition(".")[2] not in own]
    assert [key for key in unsaid if not key.startswith("peft.")] == []
    code, shown, errors = dare("recipe", "--explain", "max_steps")
    assert code == 0, errors
    assert "training.max_steps: -1" in shown
    assert "curriculum" not in shown


def test_recipes_are_listed_and_printed(dare: Call) -> None:
    shown = dare("recipe")[1]
    assert [line.split()[0] for line in shown.splitlines()] == recipe_names()
    assert dare("recipe", "quickstart")[1] == text_of("quickstart")
    assert dare("recipe", "quickstat")[0] == 2


def test_nothing_to_evaluate_on_is_said(dare: Call) -> None:
    code, _, errors = dare("train", "--eval-data", "null", "--dry-run")
    assert code == 2
    assert "eval_data" in errors


def test_data_beside_the_recipe_is_found_from_elsewhere_and_on_resume(
    tmp_path: Path, dare: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    rows = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(8)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (home / "mine.jsonl").write_text(text, encoding="utf-8")
    (home / "recipe.yaml").write_text(
        "model: pocket\ndata: mine.jsonl\ntraining: {max_steps: 1, rollout_budget: 16, "
        "max_completion_length: 8, save_steps: 1}\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(elsewhere)
    code, out, err = dare("train", str(home / "recipe.yaml"), "--output-dir", "run")
    assert code == 0, err
    monkeypatch.chdir(tmp_path)
    code, out, err = dare("train", "--resume", "elsewhere/run")
    assert code == 0, err
    assert "was finished already, at step 1" in out
