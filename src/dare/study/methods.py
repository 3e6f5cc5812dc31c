"""Methods side by side: arms x seeds at equal generated tokens, then the comparison."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput, require
from dare.study.arms import Arm
from dare.study.jobs import Job, jobs_of, write_json
from dare.study.runner import Outcome, run_jobs, sole_study
from dare.study.study_progress import StudyProgress
from dare.training.recipe import change, load_recipe

QUICKSTART_TOKENS = 500_000


@dataclass(frozen=True)
class Study:
    """What is run. `options` change the recipe of every arm, as `dare train` takes them."""

    arms: Sequence[Arm]
    out: Path
    seeds: int = 5
    tokens: int | None = None
    recipe: str = "quickstart"
    options: Sequence[str] = field(default=())
    truth: bool = False
    """Measure the error of the difficulty estimate at the end of every run, too."""
    first_seed: int = 0
    """Seeds that settings were chosen on are no test of them: begin elsewhere."""

    def jobs(self) -> list[Job]:
        """Every run, all settings checked; nothing is written."""
        for word in self.options:
            fix = "is set by the study; use --seeds, --first-seed, --arm and --out"
            name = word.partition("=")[0]
            require(name not in ("--seed", "--preset", "--output-dir"), name, word, fix)
        require(self.seeds >= 1, "--seeds", self.seeds, "needs at least one")
        first = self.first_seed
        require(first >= 0, "--first-seed", first, "must not be negative")
        base = change(load_recipe(self.recipe), list(self.options))
        seeds = range(first, first + self.seeds)
        return jobs_of(self.arms, seeds, base, self._budget(), self.out, truth=self.truth)

    def run(
        self,
        workers: int = 1,
        devices: Sequence[str] = (),
        limit: float | None = None,
        progress: StudyProgress | None = None,
    ) -> Outcome:
        """Run what is missing; see `run_jobs`."""
        jobs = self.jobs()
        with sole_study(self.out):
            self._note_order()
            places = list(devices) or default_devices(jobs[0].recipe)
            return run_jobs(jobs, workers, places, limit, progress)

    def _note_order(self) -> None:
        """study.json lists the methods in the order of the tables, those of earlier calls first."""
        path = self.out / "study.json"
        before = json.loads(path.read_text(encoding="utf-8"))["methods"] if path.is_file() else []
        names = list(dict.fromkeys([*before, *(arm.name for arm in self.arms)]))
        write_json(path, {"methods": names})

    def _budget(self) -> int:
        if self.tokens is not None:
            return self.tokens
        if self.recipe != "quickstart":
            raise InvalidInput("--tokens", None, "say how many tokens each run may generate")
        return QUICKSTART_TOKENS


def default_devices(recipe: dict[str, Any]) -> list[str]:
    """The CPU for the built-in policy, which is too small to gain from a GPU; else every GPU."""
    import torch

    if recipe.get("model", "pocket") == "pocket" or not torch.cuda.is_available():
        return ["cpu"]
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible[:count] if len(visible) >= count and visible[0] else list(map(str, range(count)))
