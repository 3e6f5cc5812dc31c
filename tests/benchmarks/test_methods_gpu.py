"""Runs of methods_gpu on the tiny policy: files, skipping, failures, memory, order of the clock."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import methods_gpu
import pytest
import torch
from methods_gpu_arms import Arm, Task
from methods_gpu_data import read_lines
from methods_gpu_eval import EvalSet
from methods_gpu_runs import Plan, run_all, settings_of

import tiny
from dare import DareTrainer
from dare.errors import InvalidInput


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny.policy().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def lottery_task(**training: Any) -> Task:
    """Problems of chosen difficulty, so that groups vary and something is learnt."""
    given = {
        **{"max_steps": 2, "rollout_budget": 32, "per_device_train_batch_size": 32},
        **{"max_completion_length": 8, "temperature": 1.0, "learning_rate": 1e-3},
        **{"save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True},
    }
    rows = tiny.problems(0.95, 0.5, 0.05)
    asked = [{"prompt": row["prompt"], "chance": row["chance"]} for row in rows]
    sets = (
        EvalSet("sums", asked[:6], tiny.lottery, 8),
        EvalSet("more", asked[6:], tiny.lottery, 4),
    )
    return Task("lottery", rows, tiny.lottery, sets, {**given, **training})


def test_the_command_leaves_runs_and_skips_them(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gsm8k = [{"question": f"{n}+1=", "answer": f"so\n#### {n + 1}"} for n in range(24)]
    math = [{"problem": f"{n}+1=", "answer": str(n + 1)} for n in range(24)]
    arguments = [
        *("--model", str(model), "--out", str(tmp_path / "out"), "--task", "mixture"),
        *("--mixture", write(tmp_path / "mixture.jsonl", math), "--tokens", "8"),
        *("--gsm8k-test", write(tmp_path / "test.jsonl", gsm8k), "--eval-problems", "4"),
        *("--math500", write(tmp_path / "math500.jsonl", math), "--steps", "2", "--rollouts", "32"),
        *("--arms", "grpo,dare:fresh_share=1.0:cold_start.references=4", "--eval-every", "1"),
        "--no-warm-up",
    ]
    methods_gpu.main(arguments)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    arms = ["grpo", "dare:fresh_share=1.0:cold_start.references=4"]
    assert last == {
        "task": "mixture",
        "done": [f"{arm}/seed-1" for arm in arms],
        "failed": [],
        "left": [],
    }
    for arm in arms:
        folder = tmp_path / "out" / "mixture" / arm / "seed-1"
        names = {"summary.json", "metrics.jsonl.gz", "selections.jsonl.gz", "eval.jsonl"}
        assert {file.name for file in folder.iterdir()} == names
        points = read_lines(folder / "eval.jsonl")
        assert [point["step"] for point in points] == [0, 1, 2]
        assert points[0]["tokens"] == 0 == points[0]["seconds"]
        assert points[0]["seconds"] < points[1]["seconds"] < points[2]["seconds"]
        assert all(len(one["right"]) == 4 for p in points for one in p["sets"].values())
        metrics = read_lines(folder / "metrics.jsonl.gz")
        assert [line["groups"] for line in metrics] == [line["prompts"] for line in metrics]
        assert points[2]["tokens"] == metrics[-1]["generated_tokens_total"]
    assert len(list((tmp_path / "out" / "start").glob("*.json"))) == 2  # found once for both arms
    methods_gpu.main(arguments)
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (again["done"], again["left"]) == ([], [])
    with pytest.raises(SystemExit, match=r"max_steps: 2 there, 3 now.*choose another --out"):
        methods_gpu.main([*arguments, "--steps", "3"])


def test_a_run_learns_and_leaves_no_trainer_behind(model: Path, tmp_path: Path) -> None:
    def alive() -> int:
        gc.collect()
        kinds = (DareTrainer, torch.nn.Module, torch.optim.Optimizer)
        return sum(isinstance(one, kinds) for one in gc.get_objects())

    plan, task = Plan(model, tmp_path, eval_every=5), lottery_task()
    before = alive()
    done = run_all(plan, task, [Arm.of("grpo")], [1, 2], warm=False)
    assert alive() == before
    assert done["done"] == ["grpo/seed-1", "grpo/seed-2"]
    first, second = (
        json.loads((tmp_path / "lottery" / "grpo" / f"seed-{n}" / "summary.json").read_text())
        for n in (1, 2)
    )
    assert first["varied_groups"] > 0
    assert first["groups"] == 8  # 2 steps of 32 rollouts in groups of 8
    assert first["tokens_per_varied_group"] == round(first["tokens"] / first["varied_groups"])
    assert first["settings"] == second["settings"]
    assert first["reward"] != second["reward"]  # seeds differ
    assert [step for step, *_ in first["clock"]] == [1, 2]
    assert first["seconds"] <= first["wall_s"] - first["evaluation_s"] + 0.1


def test_a_failed_run_is_told_and_the_next_one_runs(model: Path, tmp_path: Path) -> None:
    calls = {"count": 0}

    def reward(completions: list[Any], **_: Any) -> list[float]:
        calls["count"] += 1
        if calls["count"] == 2:
            raise RuntimeError("the reward broke")
        return [0.0 for _ in completions]

    task = lottery_task()
    task = Task("lottery", task.rows, reward, task.sets, task.training)
    plan = Plan(model, tmp_path, eval_every=5)
    arms = [Arm.of("grpo"), Arm.of("mopps")]
    done = run_all(plan, task, arms, [1], warm=False)
    assert (done["failed"], done["done"]) == (["grpo/seed-1"], ["mopps/seed-1"])
    assert "the reward broke" in (plan.folder(task, arms[0], 1) / "error.txt").read_text()
    again = run_all(plan, task, arms, [1], warm=False)
    assert again["done"] == ["grpo/seed-1"]
    assert not (plan.folder(task, arms[0], 1) / "error.txt").exists()


def test_no_run_is_started_that_would_end_too_late(model: Path, tmp_path: Path) -> None:
    task = lottery_task(max_steps=1)
    arm = Arm.of("grpo")
    run_all(Plan(model, tmp_path, 5), task, [arm], [1], warm=False)
    late = Plan(model, tmp_path, 5, max_seconds=0.0)
    assert run_all(late, task, [arm], [1, 2], warm=False)["left"] == ["grpo/seed-2"]


def test_a_run_ends_with_its_tokens(model: Path, tmp_path: Path) -> None:
    plan, task = Plan(model, tmp_path, 5, run_tokens=1), lottery_task()
    assert run_all(plan, task, [Arm.of("grpo")], [1])["done"] == ["grpo/seed-1"]
    points = read_lines(plan.folder(task, Arm.of("grpo"), 1) / "eval.jsonl")
    assert [point["step"] for point in points] == [0, 1]


def test_arms_are_presets_solutions_and_changes() -> None:
    arm = Arm.of(
        "dare+solutions:fresh_share=1.0:selection.sharpness=8:tiers=false:learning_rate=0.5"
    )
    task = lottery_task()
    config = arm.config(task, 7, "unused")
    made = config.curriculum_config()
    assert (arm.preset, arm.solutions) == ("dare", True)
    assert (made.tiers, made.selection.sharpness, config.learning_rate) == (False, 8, 0.5)
    assert (config.seed, made.seed) == (7, 7)
    assert "solution" in arm.rows(task)[0]
    assert "solution" not in Arm.of("dare").rows(task)[0]
    assert Arm.of("grpo:rollout_budget=48").config(task, 0, "x").per_device_train_batch_size == 16
    with pytest.raises(InvalidInput, match=r"selection\.kappa"):
        Arm.of("dare:fresh_share=1.0:selection.kapa=8").config(task, 0, "unused")
    with pytest.raises(SystemExit, match="setting=value"):
        Arm.of("dare:tiers")


def test_the_arms_of_the_next_runs_mean_what_they_say(model: Path) -> None:
    script = Path(methods_gpu.__file__).parents[1] / "scripts" / "gpu_runs.sh"
    found = re.search(r"\$\{ARMS:-(.*?)\}", script.read_text("utf-8"))
    assert found is not None
    grpo, dare = (Arm.of(text) for text in found[1].split(","))
    task = lottery_task(max_steps=40, learning_rate=2e-6)
    made = {arm.preset: arm.config(task, 4, "unused") for arm in (grpo, dare)}
    assert {name: one.learning_rate for name, one in made.items()} == {
        "grpo": 2.8e-6,
        "dare": 2.8e-6,
    }
    assert {name: one.max_steps for name, one in made.items()} == {"grpo": 40, "dare": 34}
    assert made["dare"].curriculum_config().advantage.thin_below == 0.6
    assert made["grpo"].curriculum_config().advantage.thin_below == 0.0
    told = settings_of(Plan(model, Path("unused"), 0), task, dare)
    assert (told["learning_rate"], told["max_steps"]) == (2.8e-6, 34)


def test_an_evaluation_at_the_end_alone_is_one_beside_the_start(
    model: Path, tmp_path: Path
) -> None:
    plan, task = Plan(model, tmp_path, eval_every=0), lottery_task(max_steps=3)
    short = Arm.of("grpo:max_steps=2")
    run_all(plan, task, [Arm.of("grpo"), short], [1], warm=False)
    for arm, steps in (("grpo", 3), (short.name, 2)):
        points = read_lines(tmp_path / "lottery" / arm / "seed-1" / "eval.jsonl")
        assert [point["step"] for point in points] == [0, steps]


def test_problems_of_math_that_are_not_trained_on_are_a_set_of_their_own(tmp_path: Path) -> None:
    math = [{"problem": f"{n}+1=", "answer": str(n + 1)} for n in range(24)]
    given = [
        *("--model", "none", "--out", "none", "--problems", "10", "--eval-problems", "0"),
        *("--mixture", write(tmp_path / "mixture.jsonl", math)),
        *("--gsm8k-test", write(tmp_path / "test.jsonl", [{"question": "1", "answer": "#### 1"}])),
    ]
    with pytest.raises(SystemExit, match="--math500, --math-test or both"):
        methods_gpu.task_of(methods_gpu.parsed(given))
    outside = write(tmp_path / "outside.jsonl", math[10:])
    task = methods_gpu.task_of(methods_gpu.parsed([*given, "--math-test", outside]))
    assert {one.name: len(one.rows) for one in task.sets} == {"math": 14, "gsm8k": 1}
    inside = write(tmp_path / "inside.jsonl", math[8:])
    with pytest.raises(SystemExit, match="2 of its problems are trained on"):
        methods_gpu.task_of(methods_gpu.parsed([*given, "--math-test", inside]))


def test_steps_are_generations_however_many_updates_they_have(model: Path, tmp_path: Path) -> None:
    task = lottery_task(per_device_train_batch_size=16)
    arm = Arm.of("grpo:steps_per_generation=2:gradient_accumulation_steps=1")
    run_all(Plan(model, tmp_path, 1), task, [arm, Arm.of("grpo")], [1], warm=False)
    found = {}
    for name in ("grpo", arm.name):
        folder = tmp_path / "lottery" / name / "seed-1"
        found[name] = json.loads((folder / "summary.json").read_text())
        assert [point["step"] for point in read_lines(folder / "eval.jsonl")] == [0, 1, 2]
    assert [one["steps"] for one in found.values()] == [2, 2]
    assert [one["updates"] for one in found.values()] == [2, 4]
    assert [len(one["reward"]) for one in found.values()] == [2, 2]
