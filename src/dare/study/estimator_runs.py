"""The estimator study from a recipe: a run a seed, finished ones never repeated; and its tables."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput, require
from dare.runs.files import read_json, write_json, write_whole
from dare.runs.reader import read_lines
from dare.study.estimator_figures import summarise
from dare.study.estimators import Measurement, watch
from dare.study.jobs import Task
from dare.study.methods import default_devices
from dare.study.runner import StudyProgress, run_jobs
from dare.table import Table, print_tables
from dare.teacher.file import load_head
from dare.training.progress import RichProgress
from dare.training.recipe import build, curriculum_of

_FIRST_SEED = 42
POINTS, SEED = "points.json", "seed.json"
"""What was measured, and what a process of its own is to do."""


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
    require(seeds >= 1, "--seeds", seeds, "needs at least 1")
    require(workers >= 1, "--workers", workers, "needs at least 1")
    first = int((recipe.get("training") or {}).get("seed", _FIRST_SEED))
    settings = {
        "recipe": dict(recipe),
        "curriculum": curriculum_of(recipe),
        "measurement": dataclasses.asdict(wanted),
        "teacher": None if teacher is None else [teacher, load_head(teacher).head.digest()],
    }
    _claim(folder, json.loads(json.dumps(settings, default=str)))
    every = range(first, first + seeds)
    jobs = [SeedJob(dict(recipe), wanted, seed, teacher, folder / f"seed-{seed}") for seed in every]
    missing = [job for job in jobs if not job.done]
    if workers > 1 and len(missing) > 1:
        outcome = run_jobs(jobs, workers, default_devices(dict(recipe)), progress=StudyProgress())
        for job, reason in outcome.failed:
            raise InvalidInput("--workers", job.title, f"failed ({reason}); see {job.log}")
        missing = [job for job in jobs if not job.done]
        if missing:
            raise KeyboardInterrupt
    for job in missing:
        if not job.run():
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
        training = {
            **(self.recipe.get("training") or {}),
            "output_dir": str(self.folder / "run"),
            "seed": self.seed,
            "disable_tqdm": True,
            "eval_strategy": "no",
            "eval_on_start": False,
            "load_best_model_at_end": False,
            "save_strategy": "no",
        }
        bar = [RichProgress(self.title)] if show else []
        trainer = build({**self.recipe, "training": training}, callbacks=bar)
        trainer.quiet()
        processes = trainer.accelerator.num_processes
        require(processes == 1, "processes", processes, "run the study in one process")
        so_far = self.folder / "so-far.json"
        study = watch(
            trainer,
            self.wanted,
            trainer.policy_services().teacher(self.teacher),
            # Hours may lie between two points: what a killed run has measured can still be read.
            save=lambda points: write_json(so_far, {"seed": self.seed, "points": points}),
        )
        trainer.train()
        if trainer.state.global_step < self.total:
            return False
        found = study.result(read_lines(self.folder / "run" / "metrics.jsonl"))
        write_json(self.folder / POINTS, found, allow_nan=False)
        return True


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """A folder belongs to one study; another's, or a stranger's, is left alone."""
    path = folder / "study.json"
    strangers = [item.name for item in folder.iterdir()] if folder.is_dir() else []
    if path.is_file():
        if json.loads(path.read_text(encoding="utf-8")) == settings:
            return
        fix = "holds a study with other settings; choose another folder"
        finished = list(folder.glob("seed-*/points.json"))
        require(not finished, "--out", str(folder), fix)  # nothing would be lost otherwise
    elif strangers:
        shown = f"{folder} ({strangers[0]}, ...)"
        raise InvalidInput("--out", shown, "holds other files; choose another folder")
    write_json(path, settings)


def tables(figures: dict[str, Any]) -> list[Table]:
    """Every table, lowest error first."""
    found = [_errors(figures), _near_half(figures), _cost(figures)]
    if figures["ess_sweep"] is not None:
        found.append(_sweep(figures["ess_sweep"]))
    return [*found, _calibration(figures)]


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


def _ordered(figures: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return sorted(figures["estimators"].items(), key=lambda item: float(item[1]["mae"]))


def _errors(figures: dict[str, Any]) -> Table:
    steps = [str(step) for step in figures["at"]]
    headings = ["estimator", "MAE", "95 %", "MSE", "95 %", "seen MAE", "MSE", "unseen MAE", "MSE"]
    lines = {
        f"{name} (intrinsic)" if name == "current-fr" else name: line
        for name, line in figures["estimators"].items()
    }
    lines["best constant (hindsight)"] = figures["constant"]
    rows = []
    for label, line in sorted(lines.items(), key=lambda item: float(item[1]["mae"])):
        cells = []
        for key, digits in (("mae", 3), ("mse", 4)):
            low, high = line.get(f"{key}_low"), line.get(f"{key}_high")
            span = "-" if low is None else f"{low:.{digits}f} - {high:.{digits}f}"
            cells += [_number(line[key], digits), span]
        for part in ("seen", "unseen"):
            cells += [_number(line[part]["mae"]), _number(line[part]["mse"], 4)]
        cells += [_number(line["by_step"].get(step, {}).get("mae")) for step in steps]
        rows.append([label, *cells])
    group = figures["intrinsic"]["rollouts"]
    return Table(
        f"Error of the estimated failure rate ({group} fresh rollouts: intrinsic; best constant: "
        "the median of the true rates for MAE, their mean for MSE, for each figure its own)",
        [*headings, *(f"MAE @{step}" for step in steps)],
        rows,
    )


def _near_half(figures: dict[str, Any]) -> Table:
    headings = ["estimator", "prompts", "true rate", "95 %", "distance from 0.5", "in 0.2 - 0.8"]
    rows = []
    for name, line in _ordered(figures):
        near = line["near_half"]
        span = "-" if near["low"] is None else f"{near['low']:.3f} - {near['high']:.3f}"
        values = [_number(near["distance"]), _number(near["medium"], 2)]
        rows.append([name, str(near["prompts"]), _number(near["realised"]), span, *values])
    return Table("Prompts predicted at 0.4 to 0.6", headings, rows)


def _cost(figures: dict[str, Any]) -> Table:
    headings = ["estimator", "generated", "scored", "of these once", "seconds", "an estimate"]
    rows = []
    for name, line in _ordered(figures):
        cost = line["cost"]
        tokens = [f"{cost[key]:,}" for key in ("generated", "scored", "once")]
        rows.append([name, *tokens, f"{cost['seconds']:.1f}", f"{cost['tokens_per_estimate']:.1f}"])
    return Table("Tokens beside the rollouts that are trained on", headings, rows)


def _sweep(lines: list[dict[str, Any]]) -> Table:
    headings = ["ESS >=", "accepted", "of those with rollouts", "MAE", "MAE of the accepted"]
    rows = [
        [
            f"{line['tau']:g}",
            _number(line["coverage"], 2),
            _number(line["held_coverage"], 2),
            _number(line["mae"]),
            _number(line["mae_accepted"]),
        ]
        for line in lines
    ]
    return Table("ESS threshold of the paper's estimator", headings, rows)


def _calibration(figures: dict[str, Any]) -> Table:
    headings = ["estimator", "predicted", "prompts", "mean prediction", "true rate", "95 %"]
    rows = []
    for name, line in _ordered(figures):
        for part in line["calibration"]:
            span = f"{part['low']:.3f} - {part['high']:.3f}"
            values = [_number(part["predicted"]), _number(part["realised"]), span]
            bounds = f"{part['from']:.1f} - {part['to']:.1f}"
            rows.append([name, bounds, str(part["prompts"]), *values])
    return Table("Calibration", headings, rows)


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
