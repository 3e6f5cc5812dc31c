"""What is trained on what: tasks, arms, and the options that scripts of runs share."""

from __future__ import annotations

import hashlib
import json
import math
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from methods_gpu_eval import EvalSet, Row

from dare import DareConfig
from dare.rewards.calling import RewardFunction
from dare.training.recipe import change, config_of


@dataclass(frozen=True)
class Task:
    """What all arms share: problems, reward, evaluation sets and fields of DareConfig."""

    name: str
    rows: list[Row]
    reward: RewardFunction
    sets: tuple[EvalSet, ...]
    training: dict[str, Any]
    about: dict[str, Any] = field(default_factory=dict)
    """Facts for the summary."""

    @property
    def digest(self) -> str:
        """Changes with any problem."""
        return hashlib.sha256(json.dumps(self.rows, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Arm:
    """A preset, whether it is shown worked solutions, and changes: `dare+solutions:tiers=false`."""

    name: str
    preset: str
    solutions: bool
    changes: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Arm:
        """PRESET[+solutions][:setting=value]..., settings of the curriculum or of DareConfig."""
        base, *changes = text.split(":")
        for one in changes:
            if "=" not in one:
                raise SystemExit(f"--arms {text}: write a change as setting=value, not {one!r}")
        return cls(text, base.removesuffix("+solutions"), base.endswith("+solutions"), (*changes,))

    def config(self, task: Task, seed: int, folder: Path | str) -> DareConfig:
        """All settings of a run; a setting or preset that does not exist is refused here."""
        training = {**task.training, "seed": seed, "output_dir": str(folder)}
        recipe = {"preset": self.preset, "training": training}
        made = config_of(change(recipe, [f"--{one}" for one in self.changes]))
        rollouts = made.curriculum_config().rollout_budget
        made.per_device_train_batch_size = math.gcd(made.per_device_train_batch_size, rollouts)
        made.max_steps *= made.updates_per_generation  # a task's steps are generations
        return made

    def rows(self, task: Task) -> list[Row]:
        """The problems as this arm sees them."""
        if self.solutions:
            return task.rows
        return [{name: row[name] for name in row if name != "solution"} for row in task.rows]


def common_training(options: Namespace) -> dict[str, Any]:
    """Fields of DareConfig from the command line that the math and code scripts share."""
    return {
        "max_steps": options.steps,
        "rollout_budget": options.rollouts,
        "per_device_train_batch_size": options.rows,
        "generation_rows": options.generation_rows,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "learning_rate": options.learning_rate,
        "lr_scheduler_type": options.schedule,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "sample_rows": 0,
        "unscored_limit": 1.0,  # the share is reported; a run is not stopped for it
        "use_cpu": not torch.cuda.is_available(),
    }


def add_options(parser: ArgumentParser) -> None:
    """Options that the math and code scripts share."""
    parser.add_argument("--model", type=Path, required=True, help="a folder of weights")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="1", help="with commas between them")
    parser.add_argument("--rollouts", type=int, default=256, help="R: rollouts a step trains on")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=2e-6)
    parser.add_argument(
        "--schedule",
        default="constant",
        help="of the learning rate; with `linear` points before the end cannot be compared",
    )
    parser.add_argument("--rows", type=int, default=64, help="rollouts a training forward pass")
    parser.add_argument("--generation-rows", type=int, default=1024, help="rollouts at once")
    parser.add_argument("--run-tokens", type=int, help="end a run after this many tokens")
    parser.add_argument("--max-seconds", type=float, default=math.inf, help="start no run later")
    parser.add_argument("--no-warm-up", action="store_true")
