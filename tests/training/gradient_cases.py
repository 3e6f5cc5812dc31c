"""Runs whose gradients are compared, on one process and on two.

    torchrun --nproc_per_node 2 gradient_cases.py MODEL OUT CASE...

trains the model in the folder MODEL and leaves in OUT what the first process saw. The runs of
presets are not compared with the reference there: the same runs on one process are.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from plain_reference import Step, Witness, whole_weights
from transformers import AutoModelForCausalLM

import tiny
from dare.config import CurriculumConfig, acting_changes, preset_names
from dare.curriculum import Services

# What a success on a hard prompt is taken to say: the policy itself writes digits only.
SOLUTION = "Since both numbers are small, we add the first to the second. Then 4 * 5 = 20 follows."

TOLERANCE = 1e-5  # of a loss or a gradient against the reference
# A plain gradient step of this size moves ratios past the clip range within a step or two.
_FAR = {"optim": "sgd", "learning_rate": 1.0}
_REPLAY = {**_FAR, "curriculum": {"fresh_share": 0.5}, "per_device_train_batch_size": 24}
CASES: dict[str, dict[str, Any]] = {
    "tiers": {},
    "accumulation 2": {"per_device_train_batch_size": 24},
    "accumulation 4": {"per_device_train_batch_size": 12},
    "replay": _REPLAY,
    "hinted": {"hint_conditioning": "hinted"},
    "think longer": {"hint_conditioning": "hinted", "curriculum": {"hard.extra": "think"}},
    "kl": {**_FAR, "beta": 0.1, "per_device_train_batch_size": 24},
    "unscored": {"reward": tiny.patchy},
    "thinned": {"curriculum": {"advantage.thin_below": 1.2}, "reward": tiny.patchy},
    "thinned replay": {
        **_REPLAY,
        "beta": 0.1,
        "curriculum": {"fresh_share": 0.5, "advantage.thin_below": 0.9},
    },
    "paper": {"preset": "paper"},
    "grpo": {**_FAR, "preset": "grpo", "beta": 0.1, "per_device_train_batch_size": 12},
    "all": {
        **_FAR,
        "curriculum": {"fresh_share": 0.6, "advantage.shape_alone": True},
        "hint_conditioning": "hinted",
        "beta": 0.1,
        "reward": tiny.patchy,
        "per_device_train_batch_size": 12,
    },
    "dapo": {**_REPLAY, "loss_type": "dapo", "reward": tiny.patchy},
    "dr_grpo": {**_REPLAY, "loss_type": "dr_grpo", "beta": 0.1},
    "cispo": {**_REPLAY, "loss_type": "cispo", "beta": 0.1},
    "sequence": {**_REPLAY, "importance_sampling_level": "sequence", "num_iterations": 2},
    "truncated": {**_REPLAY, "mask_truncated_completions": True},
    "truncated dapo": {**_FAR, "mask_truncated_completions": True, "loss_type": "dapo"},
    "iterations": {
        "learning_rate": 0.5,
        "num_iterations": 3,
        "beta": 0.1,
        "per_device_train_batch_size": 24,
    },
    "mini-batches": {
        **_REPLAY,
        "hint_conditioning": "hinted",
        "num_iterations": 2,
        "per_device_train_batch_size": 12,
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 2,
    },
}


def updates(case: str) -> int:
    """Optimiser steps that each step of a case makes."""
    settings = CASES.get(case, {})
    parts = settings.get("steps_per_generation", 1) // settings.get(
        "gradient_accumulation_steps", 1
    )
    return int(settings.get("num_iterations", 1) * parts)


# What estimators ask for at every step, made small.
_SMALL: dict[str, dict[str, Any]] = {
    "current-fr": {"estimator.max_probes": 2},
    "dapo": {"estimator.max_probes": 2},
    "greso": {"estimator.max_probes": 2},
    "dots": {"estimator.references": 6},
    "edco": {"estimator.candidates": 6},
    "llm-judge": {"estimator.candidates": 12},
}


def _of_preset(name: str) -> dict[str, Any]:
    """A case that leaves a preset as it is, but for its size."""
    settings = CurriculumConfig.preset(name)
    curriculum: dict[str, Any] = dict(_SMALL.get(name, {}))
    curriculum["cold_start.references"] = 15 if settings.cold_start.references else 0
    curriculum["fresh_share"] = settings.fresh_share
    curriculum["cold_start.train"] = False  # two steps are to show every tier
    curriculum["cold_start.group_size"] = 8
    if settings.tiers and (settings.easy.use or settings.hard.use):
        curriculum["selection.eta"] = 0.7  # every tier is drawn within two steps
    few: dict[str, Any] = {"save_strategy": "no", "eval_strategy": "no"}
    few["per_device_train_batch_size"] = 24
    return {**_FAR, **few, "preset": name, "curriculum": acting_changes(name, curriculum)}


PRESETS = {f"preset {name}": _of_preset(name) for name in preset_names()}


def run(
    case: str,
    folder: Path,
    model: Any = None,
    processes: int = 1,
    *,
    check: bool = True,
    **more: Any,
) -> tuple[Any, list[Step]]:
    """Two steps of a case; the trainer, and for every step its gradient and the reference's."""
    changes = dict(CASES[case] if case in CASES else PRESETS[case])
    reward = changes.pop("reward", tiny.lottery)
    curriculum = changes.pop("curriculum", {})
    if case in CASES:
        curriculum = {
            **({} if "preset" in changes else tiny.CLASSIC),
            "cold_start.references": 0 if case == "grpo" else 15,
            "cold_start.train": False,
            "cold_start.group_size": 8,
            "selection.eta": 0.7,
            "fresh_share": 1.0,
            **curriculum,
        }
        curriculum = acting_changes(changes.get("preset", "dare"), curriculum)
    settings = {
        "optim": "sgd",
        "learning_rate": 0.1,
        "max_grad_norm": 0.0,
        "max_steps": 2 * updates(case),
        "rollout_budget": 48,
        "save_strategy": "steps",
        "save_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "per_device_train_batch_size": 48,
        **changes,
        **more,
    }
    settings["per_device_train_batch_size"] //= processes
    witness = Witness(check)
    trainer = tiny.trainer(
        folder,
        model=model,
        reward=reward,
        data=tiny.problems(0.97, 0.5, 0.12, each=5),
        eval_data=tiny.problems(0.9, 0.4, each=2)[:3],
        callbacks=[witness],
        services=Services(decode=lambda tokens: SOLUTION),
        curriculum=curriculum,
        **settings,
    )
    witness.attach(trainer)
    trainer.train()
    return trainer, witness.steps


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def by_step(case: str, steps: list[Step]) -> list[list[Step]]:
    """What a run's updates were, step by step."""
    many = updates(case)
    return [steps[at : at + many] for at in range(0, len(steps), many)]


def check_reference(case: str, steps: list[Step], lines: list[dict[str, Any]]) -> None:
    """Each step's loss, as it was logged, and its gradients are those of the plain reference."""
    for made, line in zip(by_step(case, steps), lines, strict=True):
        for name in ("loss", "clipped", "kl"):
            wanted = sum(getattr(step, name) for step in made) / len(made)
            written = line["loss" if name == "loss" else f"objective_{name}"]
            assert abs(written - wanted) <= TOLERANCE, (name, written, wanted)
        for step in made:
            assert step.distance() < TOLERANCE
            assert sum(len(group.rollouts) for group in step.groups) == 48
            # Far above the tolerance, or the comparison would say nothing.
            assert max(float(value.abs().max()) for value in step.gradient.values()) > 1e-2


def as_saved(trainer: Any, steps: list[Step]) -> dict[str, Any]:
    """What two runs are compared by."""
    return {
        "gradients": [step.gradient for step in steps],
        "distances": [step.distance() for step in steps],
        "selections": [[list(prompt) for prompt in step.selection] for step in steps],
        "weights": whole_weights(trainer.accelerator.unwrap_model(trainer.model)),
        "difficulty": trainer.curriculum.difficulty().tolist(),
    }


def part(weight: Any) -> int:
    """How much of a weight this process holds: rows, or of ZeRO-3 entries."""
    if hasattr(weight, "ds_tensor"):
        return int(weight.ds_tensor.numel())
    return len(getattr(weight, "_local_tensor", weight))


if __name__ == "__main__":
    torch.set_num_threads(1)
    source, out, *cases = sys.argv[1:]
    processes = int(os.environ["WORLD_SIZE"])
    for name in cases:
        policy = AutoModelForCausalLM.from_pretrained(source)
        made, steps = run(name, Path(out) / name, policy, processes, check=name in CASES)
        assert made.accelerator.num_processes == processes
        kept = as_saved(made, steps)  # with the parts that other processes have
        held = made.accelerator.unwrap_model(made.model).named_parameters()
        kept["parts"] = {name: part(one) for name, one in held}
        if made.is_world_process_zero():
            torch.save(kept, Path(out) / f"{name}.pt")
