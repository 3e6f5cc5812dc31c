"""Pass rates of training prompts under several policies: what a teacher learns from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import TrainerCallback

from dare.curriculum.arrays import Array, keyed_rng
from dare.data.row import text_of
from dare.errors import InvalidInput, require
from dare.runs.checkpoint import checkpoints
from dare.runs.files import write_whole
from dare.study.single import fresh_rollouts, made_to_measure
from dare.training.progress import RichProgress
from dare.training.recipe import load_data

if TYPE_CHECKING:
    from dare.training.trainer import DareTrainer


@dataclass(frozen=True)
class Wanted:
    """After which steps, on how many prompts each time, with how many rollouts."""

    at: tuple[int, ...]
    prompts: int
    rollouts: int = 8
    leave_out: frozenset[str] = frozenset()
    """Prompts that are never measured, in the form of `text_of`."""

    def __post_init__(self) -> None:
        require(self.at and min(self.at) >= 0, "--at", self.at, "name steps from 0 on")
        require(self.prompts >= 2, "--prompts", self.prompts, "needs at least 2")
        require(self.rollouts >= 1, "--rollouts", self.rollouts, "needs at least 1")


def measure(recipe: Mapping[str, Any], out: Path, wanted: Wanted) -> list[dict[str, Any]]:
    """Train the recipe up to the last point and write OUT, one row a prompt and point.

    Each point takes prompts that the ones before it have not, as long as there are any. The run
    lies in OUT.run until OUT is complete: the same call goes on from its newest checkpoint, and
    points that were measured are not measured again.
    """
    folder = out.with_name(out.name + ".run")
    mark = _claim(folder, recipe, wanted)
    bar, fix = [RichProgress("measure")], "measure in one process"
    trainer = made_to_measure(recipe, folder / "run", bar, fix)
    label = Path(str(recipe.get("model", "pocket"))).name
    last, steps = max(wanted.at), int(trainer.args.max_steps)
    fix = f"the run ends after {steps} steps; lengthen it with --max-steps"
    require(last <= steps, "--at", last, fix)
    recorder = RateRecorder(trainer, wanted, folder, label)
    write_whole(folder / "measure.json", mark)
    trainer.add_callback(recorder)
    resumes = bool(checkpoints(folder / "run"))
    trainer.train(resume_from_checkpoint=resumes)
    lines = [line for step in sorted(wanted.at) for line in recorder.rows(step)]
    _write(out, lines)
    shutil.rmtree(folder)
    return lines


class RateRecorder(TrainerCallback):
    """Rolls prompts out at the wanted steps, outside of the run's budget and records."""

    def __init__(self, trainer: DareTrainer, wanted: Wanted, folder: Path, label: str) -> None:
        self._trainer, self._wanted, self._folder, self._label = trainer, wanted, folder, label
        texts = [text_of(record["prompt"]) for record in trainer.store.records]
        free = [row for row, text in enumerate(texts) if text not in wanted.leave_out]
        fix = f"only {len(free)} of {len(texts)} prompts can be measured"
        require(len(free) >= wanted.prompts, "--prompts", wanted.prompts, fix)
        self._order = keyed_rng(trainer.args.seed, 0, "teacher prompts").permutation(free)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The policy before its first update."""
        if state.global_step == 0:
            self._measure(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The policy after an update; written before the step's checkpoint is."""
        step, within = divmod(state.global_step, args.updates_per_generation)
        if within:
            return
        self._measure(step)
        if step >= max(self._wanted.at):
            control.should_training_stop = True

    def rows(self, step: int) -> list[dict[str, Any]]:
        """What was measured at a step."""
        text = self._path(step).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def _measure(self, step: int) -> None:
        if step not in self._wanted.at or self._path(step).is_file():
            return
        trainer, wanted = self._trainer, self._wanted
        rows = self._prompts(sorted(wanted.at).index(step))
        fresh = fresh_rollouts(trainer, rows, wanted.rollouts, "teacher rates")
        lines = [
            {
                "prompt": trainer.store.records[int(row)]["prompt"],
                "pass_rate": 1.0 - float(rate),
                "trials": int(trials),
                "policy": f"{self._label}@{step}",
            }
            for row, rate, trials in zip(rows, fresh.rate_Q, fresh.trials_Q, strict=True)
            if trials > 0
        ]
        _write(self._path(step), lines)

    def _prompts(self, point: int) -> Array:
        """The next prompts of one random order, from its start again once all had their turn."""
        count = self._wanted.prompts
        places = (point * count + np.arange(count)) % len(self._order)
        return np.sort(self._order[places])

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step}.jsonl"


def prompts_of(recipe: Mapping[str, Any]) -> frozenset[str]:
    """The training prompts of a recipe, to be left out."""
    return frozenset(text_of(row["prompt"]) for row in load_data(recipe.get("data"), "data"))


def _claim(folder: Path, recipe: Mapping[str, Any], wanted: Wanted) -> str:
    """What lies in OUT.run must be of this very measurement, which measure.json names."""
    settings = {
        "recipe": dict(recipe),
        "at": sorted(wanted.at),
        "prompts": wanted.prompts,
        "rollouts": wanted.rollouts,
        "left_out": len(wanted.leave_out),
    }
    text = json.dumps(settings, default=str, sort_keys=True, indent=1) + "\n"
    path = folder / "measure.json"
    if folder.exists():
        same = path.is_file() and path.read_text(encoding="utf-8") == text
        fix = "holds an unfinished measurement with other settings; remove it or choose another OUT"
        require(same, "--out", str(folder), fix)
    return text


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    """JSON lines that are there as a whole or not at all."""
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    try:
        write_whole(path, text)
    except OSError as error:
        raise InvalidInput("--out", str(path), f"cannot be written: {error}") from None
