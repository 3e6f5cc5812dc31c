"""The examples run, learn, and stay on one page."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from dare_sandbox import probe

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Import one by its name; examples may import each other."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_one_page(path):
    assert len(path.read_text("utf-8").splitlines()) < 80


def test_the_method_on_one_page_draws_more_groups_that_teach_and_learns_more(example):
    minimal = example("minimal")
    dare, grpo = minimal.train("dare", 12), minimal.train("grpo", 12)
    assert sum(dare["mixed"]) > 1.1 * sum(grpo["mixed"])
    assert dare["accuracy"][-1] > grpo["accuracy"][-1] > grpo["accuracy"][0]
    assert "torch" not in Path(minimal.__file__).read_text("utf-8")


def test_the_method_on_one_page_runs_as_a_script():
    command = [sys.executable, str(EXAMPLES / "minimal.py"), "2"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.partition(":")[0] for line in output.splitlines()] == ["grpo", "dare"]


def test_a_loop_of_ones_own_learns_more_with_the_curriculum_than_with_uniform_draws(example):
    own_loop = example("own_loop")
    dare, grpo = own_loop.train(15), own_loop.train(15, "grpo")
    assert dare[-1] > dare[0] + 0.02
    assert dare[-1] > grpo[-1]


def test_an_estimator_of_ones_own_knows_more_than_nothing(example):
    own_estimator = example("own_estimator")
    _, nothing = own_estimator.errors("uniform", 8)
    accuracy, error = own_estimator.errors("own_estimator:MovingAverage", 8)
    assert error < 0.8 * nothing
    assert accuracy > 0.3


def test_a_reward_of_ones_own_trains_and_its_success_is_the_right_answer(example, tmp_path):
    own_reward = example("own_reward")
    own_reward.trainer(str(tmp_path / "run"), 2).train()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    first = json.loads(lines[0])
    assert len(lines) == 2
    assert 0 < first["reward"] < 1
    drawn = json.loads((tmp_path / "run" / "selections.jsonl").read_text("utf-8").splitlines()[0])
    assert set(drawn["failure_rate"]) <= {n / 8 for n in range(9)}, "a success, not the reward"


def test_a_run_is_read_from_its_folder(example, tmp_path):
    example("own_reward").trainer(str(tmp_path / "run"), 2).train()
    (tmp_path / "run" / "eval.jsonl").write_text('{"step": 0, "accuracy": 0.25}\n', "utf-8")
    command = [sys.executable, str(EXAMPLES / "read_run.py"), str(tmp_path / "run")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "step 0: accuracy 0.250" in output
    assert "mean distance over 16 drawn prompts" in output


def test_programs_are_rewarded_by_their_tests(example):
    missing = probe()
    if missing["bwrap"] and missing["landlock"]:
        pytest.skip(f"no sandbox on this machine: {missing['bwrap']}")
    code_rewards = example("code_rewards")
    rewards = code_rewards.rewards()
    assert {name for name, reward in rewards.items() if reward == 1.0} == {"right"}
    assert None not in rewards.values()
    assert code_rewards.function_verdict("def double(x):\n    return x + x") == "accepted"
    assert code_rewards.function_verdict("def double(x):\n    return x / 0") == "runtime_error"


def test_gsm8k_with_adapters_trains_adapters_alone(example, tmp_path):
    rows = [{"prompt": f"{n}+1=", "answer": f"so #### {n + 1}"} for n in range(16)]
    small = {"rollout_budget": 32, "num_generations": 4, "max_completion_length": 8, "max_steps": 1}
    more = {"per_device_train_batch_size": 8, "report_to": "none", "use_cpu": True}
    trainer = example("gsm8k_lora").trainer(
        tiny.policy(),
        rows,
        str(tmp_path / "run"),
        processing_class=tiny.tokenizer(),
        **small,
        **more,
        save_strategy="no",
    )
    trainer.train()
    trained = [name for name, weight in trainer.model.named_parameters() if weight.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)
