"""Whole training runs, one after another in one process: arm x data x seed, each kept once done.

A run leaves OUT/task/arm/seed-N/{summary.json, metrics.jsonl.gz, selections.jsonl.gz, eval.jsonl}.
The summary is written last: a folder without one is begun anew, one with it is skipped. A run that
fails leaves its traceback in error.txt and the next one begins. Seconds are those of training
alone: from `train()` on, cold start included; evaluation, loading and compilation not.
"""

from __future__ import annotations

import gc
import gzip
import json
import math
import os
import shutil
import tempfile
import time
import traceback
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from methods_gpu_arms import Arm, Task
from methods_gpu_data import read_lines
from methods_gpu_eval import EvalSet, answered, answered_at_start, model_digest
from transformers import TrainerCallback

from dare import DareTrainer

_BEGAN = time.perf_counter()


def say(text: str) -> None:
    """A line at once, with the seconds since the start of the process."""
    print(f"{time.perf_counter() - _BEGAN:.0f} s: {text}", flush=True)


@dataclass(frozen=True)
class Plan:
    """Where runs come from and go to, and when to stop."""

    model: Path
    out: Path
    eval_every: int
    """Steps between evaluations; 0: at the end alone (and once before training)."""
    run_tokens: int | None = None
    """A run ends with the step that has generated this many tokens."""
    max_seconds: float = math.inf
    """No run is started that would end later than this, counted from the start of the process."""

    def folder(self, task: Task, arm: Arm, seed: int) -> Path:
        """Where a run is kept."""
        return self.out / task.name / arm.name / f"seed-{seed}"


def plan_of(options: Namespace) -> Plan:
    """The plan that the shared options stand for."""
    made = Plan(
        options.model, options.out, options.eval_every, options.run_tokens, options.max_seconds
    )
    if not (made.model / "config.json").is_file():
        raise SystemExit(f"--model {made.model}: there is no config.json")
    return made


class Interrupted(Exception):
    """A signal ended the run before its last step."""


def run_all(
    plan: Plan, task: Task, arms: Sequence[Arm], seeds: Sequence[int], *, warm: bool = True
) -> dict[str, Any]:
    """Every run that is not there yet, all arms of a seed before the next seed."""
    for arm in arms:
        arm.config(task, 0, "unused").curriculum_config()  # names are checked before the GPU works
    settings = {arm.name: settings_of(plan, task, arm) for arm in arms}
    wanted = [(arm, seed) for seed in seeds for arm in arms]
    missing = [one for one in wanted if not finished(plan, task, *one, settings[one[0].name])]
    say(f"{task.name}: {len(wanted) - len(missing)} runs are there, {len(missing)} are not")
    done, failed, left = [], [], []
    if missing and warm:
        warm_up(plan, task)
    for arm, seed in missing:
        name = f"{arm.name}/seed-{seed}"
        if time.perf_counter() - _BEGAN + expected_seconds(plan, task, arm) > plan.max_seconds:
            left.append(name)
            continue
        folder = plan.folder(task, arm, seed)
        try:
            summary = run(plan, task, arm, seed, settings[arm.name])
            say(f"{name} is done: {json.dumps(summary['accuracy'])}, {summary['seconds']} s")
            done.append(name)
        except (Interrupted, KeyboardInterrupt):
            failed.append(name)
            say(f"{name} was interrupted")
            break
        except Exception:
            failed.append(name)
            (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            say(f"{name} FAILED\n{traceback.format_exc()}")
        finally:
            shutil.rmtree(folder / "run", ignore_errors=True)
        release()
    return {"task": task.name, "done": done, "failed": failed, "left": left}


def run(plan: Plan, task: Task, arm: Arm, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One run from the weights on disk to its summary."""
    began = time.perf_counter()
    folder = plan.folder(task, arm, seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    config = arm.config(task, seed, folder / "run")
    trainer = DareTrainer(str(plan.model), task.reward, config, arm.rows(task))
    trainer.quiet()
    watch = Watch(trainer, task.sets, folder / "eval.jsonl", f"{arm.name}/seed-{seed}", plan)
    start = answered_at_start(trainer, task.sets, settings["model"], plan.out / "start")
    watch.keep(0, start)
    trainer.add_callback(watch)  # after the trainer's own: the step is complete when it is called
    watch.began = time.perf_counter()
    trainer.train_or_stop()
    if not watch.done:
        raise Interrupted
    lines = read_lines(folder / "run" / "metrics.jsonl")
    for name in ("metrics.jsonl", "selections.jsonl"):
        pack(folder / "run" / name, folder / f"{name}.gz")
    summary = {
        "task": task.name,
        "arm": arm.name,
        "seed": seed,
        "settings": settings,
        "about": task.about,
        "curriculum": trainer.settings.to_dict(),
        "steps": watch.seconds[-1][0],
        "updates": trainer.state.global_step,
        "tokens": trainer.generated_tokens,
        "seconds": round(watch.seconds[-1][2], 2),
        "accuracy": {
            name: [start[name]["accuracy"], figures["accuracy"]]
            for name, figures in watch.last.items()
        },
        **learning(lines),
        "clock": watch.seconds,
        "evaluation_s": round(watch.paused, 1),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "wall_s": round(time.perf_counter() - began, 1),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    trainer.accelerator.free_memory()
    partial = folder / "summary.tmp"
    partial.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, folder / "summary.json")
    return summary


@dataclass(eq=False)
class Watch(TrainerCallback):
    """Reads the clock after every step and answers the evaluation sets while it stands still."""

    trainer: DareTrainer
    sets: Sequence[EvalSet]
    file: Path
    name: str
    plan: Plan
    began: float = 0.0
    paused: float = 0.0
    done: bool = False
    seconds: list[tuple[int, int, float]] = field(default_factory=list)
    """(step, tokens generated, seconds trained) after each step, which can have several updates."""
    last: dict[str, dict[str, Any]] = field(default_factory=dict)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerCallback."""
        step, unfinished = divmod(state.global_step, self.trainer.args.updates_per_generation)
        if unfinished:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        stopped = time.perf_counter()
        tokens = self.trainer.generated_tokens
        self.seconds.append((step, tokens, round(stopped - self.began - self.paused, 3)))
        spent = self.plan.run_tokens is not None and tokens >= self.plan.run_tokens
        self.done = spent or state.global_step == state.max_steps
        every = self.plan.eval_every
        if self.done or (every and step % every == 0):
            self.keep(step, answered(self.trainer, self.sets).figures)
            self.paused += time.perf_counter() - stopped
        if self.done:
            control.should_training_stop = True

    def keep(self, step: int, figures: dict[str, dict[str, Any]]) -> None:
        """A line of eval.jsonl."""
        tokens, seconds = self.seconds[-1][1:] if self.seconds else (0, 0.0)
        line = {"step": step, "tokens": tokens, "seconds": seconds, "sets": figures}
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")
        self.last = figures
        shown = ", ".join(f"{name} {one['accuracy']:.3f}" for name, one in figures.items())
        say(f"{self.name} step {step}: {shown}; {tokens:,} tokens, {seconds:.0f} s")


def learning(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a run's metrics say of its groups, rewards, phases and unscored rollouts."""
    groups = [line.get("groups", 0) for line in lines]
    varied = sum(
        line.get("varied_groups", 0.0) * count for line, count in zip(lines, groups, strict=True)
    )
    rollouts = sum(line["rollouts"] for line in lines)
    tokens = lines[-1]["generated_tokens_total"]
    phases: dict[str, float] = {}
    for line in lines:
        for name, seconds in line["seconds"].items():
            phases[name] = phases.get(name, 0.0) + seconds
    return {
        "groups": int(sum(groups)),
        "varied_groups": round(varied),
        "varied_share": round(varied / max(1, sum(groups)), 4),
        "tokens_per_varied_group": round(tokens / varied) if varied else None,
        "unscored_share": round(sum(line["unscored"] for line in lines) / max(1, rollouts), 5),
        "reward": [round(line["reward"], 4) if "reward" in line else None for line in lines],
        "phases": {name: round(seconds, 2) for name, seconds in phases.items()},
    }


def settings_of(plan: Plan, task: Task, arm: Arm) -> dict[str, Any]:
    """What must agree between runs that are compared, and with one that is skipped."""
    apart = ("per_device_train_batch_size", "generation_rows", "use_cpu")  # of speed alone
    shared = {name: value for name, value in task.training.items() if name not in apart}
    own = arm.config(task, 0, "unused")
    for change in arm.changes:
        name = change.partition("=")[0].replace("-", "_")
        if name in shared:  # what the run has, not what the others have
            shared[name] = getattr(own, name)
            if name == "max_steps":
                shared[name] //= own.updates_per_generation
    return {
        **shared,
        "problems": task.digest,
        "sets": {one.name: one.digest for one in task.sets},
        "model": model_digest(plan.model),
        "eval_every": plan.eval_every,
        "run_tokens": plan.run_tokens,
        "preset": arm.preset,
        "solutions": arm.solutions,
    }


def finished(plan: Plan, task: Task, arm: Arm, seed: int, settings: dict[str, Any]) -> bool:
    """Whether the run is there; one of other settings is refused, not mixed in."""
    file = plan.folder(task, arm, seed) / "summary.json"
    if not file.is_file():
        return False
    before = json.loads(file.read_text(encoding="utf-8"))["settings"]
    now = json.loads(json.dumps(settings))
    differ = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if differ:
        shown = ", ".join(f"{key}: {before.get(key)} there, {now.get(key)} now" for key in differ)
        raise SystemExit(f"{file.parent} is of other settings ({shown}): choose another --out")
    return True


def expected_seconds(plan: Plan, task: Task, arm: Arm) -> float:
    """The longest run of this arm so far, or else of the task; 0 where none is known."""
    known: dict[str, list[float]] = {}
    for file in (plan.out / task.name).glob("*/seed-*/summary.json"):
        found = json.loads(file.read_text(encoding="utf-8"))
        known.setdefault(found["arm"], []).append(found["wall_s"])
    return max(known.get(arm.name) or [most for walls in known.values() for most in walls] or [0.0])


def warm_up(plan: Plan, task: Task) -> None:
    """One short step of GRPO, thrown away: kernels are compiled before any clock runs."""

    def coin(completions: Sequence[Any], **_: Any) -> list[float]:
        return [float(place % 2) for place in range(len(completions))]  # every group has a gradient

    small = {"max_steps": 1, "rollout_budget": 64, "max_completion_length": 64}
    with tempfile.TemporaryDirectory() as folder:
        brief = Task("warm-up", task.rows[:256], coin, (), {**task.training, **small})
        arm = Arm.of("grpo")
        config = arm.config(brief, 0, folder)
        trainer = DareTrainer(str(plan.model), coin, config, arm.rows(brief))
        trainer.quiet()
        trainer.train()
    del trainer
    release()
    say("warmed up")


def release() -> None:
    """Give the memory of the last run back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        say(f"{torch.cuda.memory_allocated() / 1e9:.2f} GB stay allocated between runs")


def pack(source: Path, target: Path) -> None:
    """Compress a file, without a date."""
    with target.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        packed.write(source.read_bytes())
