"""The estimator study from a recipe: a run a seed, finished ones never repeated; and its tables."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput, require
from dare.runs.files import check_out, read_json, write_json, write_whole
from dare.runs.folder import remove_empty
from dare.runs.reader import read_lines
from dare.study.estimator_figures import summarise
from dare.study.estimators import Measurement, watch
from dare.study.jobs import SEED, Task
from dare.study.methods import default_devices
from dare.study.runner import StudyProgress, run_jobs
from dare.study.single import made_to_measure
from dare.table import Table, print_tables
from dare.teacher.file import load_head
from dare.training.progress import RichProgress
from dare.training.recipe import curriculum_of, find_modules

_FIRST_SEED = 42
POINTS, _MARK = "points.json", "study.json"
"""What was measured, and whose the folder is."""


def run_estimators(
    recipe: Mapping[str, Any],
    folder: Path,
    wanted: Measurement,
    seeds: int = 1,
    teacher: str | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Run what is missing, then write estimators.json and estimators.md; returns the figures.

    `teacher` is the file of a trained DOTS head; `workers` seeds run at a time.
    A seed whose `points.json` is there is finished; one that was cut off starts anew.
    """
    require(1 <= seeds <= 10_000, "--seeds", seeds, "needs 1 to 10,000")
    require(workers >= 1, "--workers", workers, "needs at least 1")
    first = int((recipe.get("training") or {}).get("seed", _FIRST_SEED))
    settings = {
        "recipe": dict(recipe),
        "curriculum": curriculum_of(recipe),
        "measurement": dataclasses.asdict(wanted),
        "teacher": None if teacher is None else [teacher, load_head(teacher).head.digest()],
    }
    whole = folder.resolve()
    there = next(above for above in (whole, *whole.parents) if os.path.exists(above))
    new = _claim(folder, json.loads(json.dumps(settings, default=str)))
    every = range(first, first + seeds)
    jobs = [SeedJob(dict(recipe), wanted, seed, teacher, folder / f"seed-{seed}") for seed in every]
    missing = [job for job in jobs if not job.done]
    if workers > 1 and len(missing) > 1:
        outcome = run_jobs(jobs, workers, default_devices(dict(recipe)), progress=StudyProgress())
        for job, reason in outcome.failed:
            raise InvalidInput("--workers", job.title, f"failed ({reason}); see {job.log}")
        stopped = bool(outcome.interrupted)
    else:
        try:
            stopped = not all(job.run() for job in missing)
        except InvalidInput:  # before its first step, it may be
            if new and [item.name for item in folder.iterdir()] == [_MARK]:
                (folder / _MARK).unlink()
                remove_empty(whole, there)
            raise
    if stopped:
        raise KeyboardInterrupt
    runs = [read_json(job.folder / POINTS) for job in jobs]
    figures = {
        "model": str(recipe.get("model", "pocket")),
        "preset": str(recipe.get("preset") or "dare"),
        "seeds": [run["seed"] for run in runs],
        "at": sorted(wanted.at),
        "prompts": len(runs[0]["points"][0]["prompt"]),
        "rollouts": wanted.rollouts,
        "solutions": runs[0]["solutions"],
        **summarise(runs),
        "runs": [
            {
                "seed": run["seed"],
                "run_generated_tokens": run["run_generated_tokens"],
                "truth_tokens": sum(point["truth_tokens"] for point in run["points"]),
            }
            for run in runs
        ],
    }
    write_json(folder / "estimators.json", figures, allow_nan=False)
    write_whole(folder / "estimators.md", markdown(figures))
    return figures


@dataclass(frozen=True)
class SeedJob(Task):
    """One seed of the study: a run under the eyes of all estimators, in a folder of its own."""

    recipe: dict[str, Any]
    wanted: Measurement
    seed: int
    teacher: str | None
    folder: Path
    MARK = POINTS
    METRICS = "run/metrics.jsonl"

    @property
    def title(self) -> str:
        """For people."""
        return f"seed {self.seed}"

    @property
    def total(self) -> int:
        """Steps."""
        return max(self.wanted.at)

    def gone(self, line: Mapping[str, Any]) -> tuple[int, str]:
        """How far the run is by the last line of its metrics, as a number and in words."""
        return line["step"] + 1, f"step {line['step'] + 1}"

    def prepare(self) -> None:
        """Write what `load` reads in the process of this seed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        held = {"wanted": dataclasses.asdict(self.wanted), "teacher": self.teacher}
        text = json.dumps({"recipe": self.recipe, "seed": self.seed, **held}, default=str, indent=1)
        write_whole(self.folder / SEED, text + "\n")

    @classmethod
    def load(cls, folder: Path) -> SeedJob:
        """What `prepare` wrote."""
        held = read_json(folder / SEED)
        lists = {name: tuple(held["wanted"][name]) for name in ("at", "estimators")}
        wanted = Measurement(**{**held["wanted"], **lists})
        return cls(held["recipe"], wanted, held["seed"], held["teacher"], folder)

    def run(self, *, show: bool = True) -> bool:
        """Run and write the points when all are there; False where the run was asked to stop.

        The recipe's evaluation and checkpoints are left out: they change nothing that is measured.
        """
        shutil.rmtree(self.folder / "run", ignore_errors=True)  # one that was cut off
        bar = [RichProgress(self.title)] if show else []
        fix, own = "run the study in one process", {"seed": self.seed, "save_strategy": "no"}
        find_modules(self.recipe, self.wanted.variants)
        trainer = made_to_measure(self.recipe, self.folder / "run", bar, fix, **own)
        so_far = self.folder / "so-far.json"
        study = watch(
            trainer,
            self.wanted,
            trainer.policy_services().teacher(self.teacher),
            # Hours may lie between two points: what a killed run has measured can still be read.
            save=lambda points: write_json(so_far, {"seed": self.seed, "points": points}),
        )
        trainer.train_or_stop()
        if trainer.state.global_step < self.total:
            return False
        found = study.result(read_lines(self.folder / "run" / "metrics.jsonl"))
        write_json(self.folder / POINTS, found, allow_nan=False)
        return True


def _claim(folder: Path, settings: dict[str, Any]) -> bool:
    """A folder belongs to one study; another's, or a stranger's, is left alone. Whether it is
    new."""
    check_out(folder, folder=True)
    path = folder / _MARK
    strangers = [item.name for item in folder.iterdir()] if os.path.isdir(folder) else []
    if os.path.isfile(path):
        if read_json(path) == settings:
            return False
        fix = "holds a study with other settings; choose another folder"
        finished = list(folder.glob("seed-*/points.json"))
        require(not finished, "--out", str(folder), fix)  # nothing would be lost otherwise
    elif strangers:
        shown = f"{folder} ({strangers[0]}, ...)"
        raise InvalidInput("--out", shown, "holds other files; choose another folder")
    write_json(path, settings)
    return True


def tables(figures: dict[str, Any]) -> list[Table]:
    """Every table, lowest error first."""
    lines = sorted(figures["estimators"].items(), key=lambda item: float(item[1]["mae"]))
    bins = [(name, part) for name, line in lines for part in line["calibration"]]
    shown = [
        _errors(figures),
        _table("Prompts predicted at 0.4 to 0.6", lines, _NEAR_HALF),
        _table("Tokens beside the rollouts that are trained on", lines, _COST),
    ]
    if figures["ess_sweep"] is not None:
        sweep = [(f"{line['tau']:g}", line) for line in figures["ess_sweep"]]
        shown.append(_table("ESS threshold of the paper's estimator", sweep, _SWEEP, "ESS >="))
    return [*shown, _table("Calibration", bins, _CALIBRATION)]


def about(figures: dict[str, Any]) -> str:
    """What was run and measured, in two sentences."""
    seeds, at = len(figures["seeds"]), ", ".join(str(step) for step in figures["at"])
    interval = "over seeds" if seeds > 1 else "over prompts, of this run alone"
    return (
        f"Policy {figures['model']}, preset {figures['preset']}, {seeds} "
        f"{'run' if seeds == 1 else 'runs'}; truth after steps {at} from {figures['rollouts']} "
        f"rollouts of each of {figures['prompts']} prompts ({figures['seen']} estimates of prompts "
        f"seen in training, {figures['unseen']} of others). "
        f"Intervals: 95 % {interval}, by Student's t."
    )


def markdown(figures: dict[str, Any]) -> str:
    """A page with all tables."""
    parts = ["# Difficulty estimators against the truth", about(figures)]
    parts += [f"## {table.title}\n\n{table.body()}" for table in tables(figures)]
    return "\n\n".join(parts) + "\n"


def show(figures: dict[str, Any]) -> None:
    """The tables on the terminal, less the calibration, which is long."""
    print(about(figures))
    print_tables(tables(figures)[:-1])


# Of each column its title, a value by dotted name (or both ends of a range), and its format.
Columns = Sequence[tuple[str, str, str]]
_ERRORS: Columns = (
    ("MAE", "mae", ".3f"),
    ("95 %", "mae_low mae_high", ".3f"),
    ("MSE", "mse", ".4f"),
    ("95 %", "mse_low mse_high", ".4f"),
    ("seen MAE", "seen.mae", ".3f"),
    ("MSE", "seen.mse", ".4f"),
    ("unseen MAE", "unseen.mae", ".3f"),
    ("MSE", "unseen.mse", ".4f"),
)
_NEAR_HALF: Columns = (
    ("prompts", "near_half.prompts", ""),
    ("true rate", "near_half.realised", ".3f"),
    ("95 %", "near_half.low near_half.high", ".3f"),
    ("distance from 0.5", "near_half.distance", ".3f"),
    ("in 0.2 - 0.8", "near_half.medium", ".2f"),
)
_COST: Columns = (
    ("generated", "cost.generated", ","),
    ("scored", "cost.scored", ","),
    ("of these once", "cost.once", ","),
    ("seconds", "cost.seconds", ".1f"),
    ("an estimate", "cost.tokens_per_estimate", ".1f"),
)
_SWEEP: Columns = (
    ("accepted", "coverage", ".2f"),
    ("of those with rollouts", "held_coverage", ".2f"),
    ("MAE", "mae", ".3f"),
    ("MAE of the accepted", "mae_accepted", ".3f"),
)
_CALIBRATION: Columns = (
    ("predicted", "from to", ".1f"),
    ("prompts", "prompts", ""),
    ("mean prediction", "predicted", ".3f"),
    ("true rate", "realised", ".3f"),
    ("95 %", "low high", ".3f"),
)


def _errors(figures: dict[str, Any]) -> Table:
    lines = {
        f"{name} (intrinsic)" if name == "current-fr" else name: line
        for name, line in figures["estimators"].items()
    }
    lines["best constant (hindsight)"] = figures["constant"]
    group = figures["intrinsic"]["rollouts"]
    return _table(
        f"Error of the estimated failure rate ({group} fresh rollouts: intrinsic; best constant: "
        "the median of the true rates for MAE, their mean for MSE, for each figure its own)",
        sorted(lines.items(), key=lambda item: float(item[1]["mae"])),
        [*_ERRORS, *((f"MAE @{step}", f"by_step.{step}.mae", ".3f") for step in figures["at"])],
    )


def _table(
    title: str, lines: Iterable[tuple[str, Any]], columns: Columns, first: str = "estimator"
) -> Table:
    rows = [[name, *(_cell(line, keys, form) for _, keys, form in columns)] for name, line in lines]
    return Table(title, [first, *(column[0] for column in columns)], rows)


def _cell(line: Any, keys: str, form: str) -> str:
    """'0.5', or '0.4 - 0.6'; a dash where one is not known."""
    held = [
        reduce(lambda part, key: (part or {}).get(key), name.split("."), line)
        for name in keys.split()
    ]
    return "-" if None in held else " - ".join(f"{value:{form}}" for value in held)
