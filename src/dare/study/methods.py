"""Methods side by side: arms x seeds at equal generated tokens; sweeps are arms, too."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare.config import load_preset
from dare.errors import InvalidInput, require
from dare.runs.files import check_out, write_json
from dare.runs.folder import sole
from dare.runs.found import study_order
from dare.study.jobs import Job
from dare.study.runner import Outcome, StudyProgress, run_jobs
from dare.study.single import budgeted
from dare.training.recipe import change, curriculum_of, load_recipe

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]*")


def check_own(options: Sequence[str]) -> None:
    """Refuse options that the study itself sets."""
    for word in options:
        fix = "is set by the study; use --seeds, --first-seed, --arm and --out"
        name = word.partition("=")[0].replace("_", "-")
        require(name not in ("--seed", "--preset", "--output-dir"), name, word, fix)


def words_of(option: str, text: str) -> list[str]:
    """The words of a line as a shell takes them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidInput(option, text, f"is no line of words ({error})") from None


@dataclass(frozen=True)
class Arm:
    """One method of a study; `options` are `--field value` words as `dare train` takes them."""

    name: str
    preset: str
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fix = "becomes a folder: use letters, digits and . _ + = , - and begin with a letter"
        require(_NAME.fullmatch(self.name), "arm", self.name, fix)
        check_own(self.options)
        load_preset(self.preset)  # an unknown one is told the nearest, before anything runs

    @classmethod
    def parse(cls, text: str) -> Arm:
        """From 'NAME=PRESET --field value ...'."""
        name, equals, rest = text.partition("=")
        words = words_of("--arm", rest)
        if not equals or not words:
            fix = "is written as 'NAME=PRESET --field value ...', e.g. 'tiers=dare --tiers true'"
            raise InvalidInput("--arm", text, fix)
        return cls(name.strip(), words[0], tuple(words[1:]))

    def recipe(self, base: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The recipe of this arm's run with a seed."""
        return change({**base, "preset": self.preset}, [*self.options, "--seed", str(seed)])


def arms_of(presets: Sequence[str], texts: Iterable[str] = ()) -> list[Arm]:
    """An arm a preset, then those that are written out; no name twice."""
    arms = [Arm(preset, preset) for preset in presets] + [Arm.parse(text) for text in texts]
    names = [arm.name for arm in arms]
    for name in names:
        require(names.count(name) == 1, "arm", name, "is named twice; each needs its own name")
    require(arms, "--presets", list(presets), "name at least one preset or --arm")
    return arms


SYMBOLS = {
    "lambda_easy": "easy.length_penalty",
    "lambda_hard": "hard.length_bonus",
    "kappa": "selection.kappa",
    "eta": "selection.eta",
    "c": "estimator.clip",
    "K": "buffer.rollouts_per_prompt",
    "sigma": "fresh_share",
    "tau_ESS": "estimator.ess_threshold",
}
"""The paper's letters, accepted as names of settings."""


def grid(preset: str, fields: Sequence[str], values: Sequence[str]) -> list[Arm]:
    """Arms of every combination, the last field running fastest.

    `values` holds one comma-separated list a field. An arm is named after what it sets, so that
    a later sweep in the same folder reuses the runs they share. tau_ESS only acts in
    the estimator `paper`, which is then set.
    """
    require(fields, "--field", list(fields), "name a setting, e.g. --field selection.sharpness")
    fix = f"give one --values list for each of the {len(fields)} fields"
    require(len(values) == len(fields), "--values", list(values), fix)
    full = [SYMBOLS.get(name, name) for name in fields]
    for name in full:
        require(full.count(name) == 1, "--field", name, "is named twice")
    lists = []
    for name, text in zip(full, values, strict=True):
        found = [value.strip() for value in text.split(",") if value.strip()]
        if len(found) != len(set(found)) or not found:
            raise InvalidInput(f"--values of {name}", text, "give different values: 8,16,32")
        lists.append(found)
    extra = ["--estimator.name", "paper"] if "estimator.ess_threshold" in full else []
    arms = []
    for combination in itertools.product(*lists):
        pairs = list(zip(full, combination, strict=True))
        name = ",".join(f"{field}={value}" for field, value in pairs)
        words = [word for field, value in pairs for word in (f"--{field}", value)]
        arms.append(Arm(name, preset, (*extra, *words)))
    return arms


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
        check_own(self.options)
        require(1 <= self.seeds <= 10_000, "--seeds", self.seeds, "needs 1 to 10,000")
        first = self.first_seed
        require(first >= 0, "--first-seed", first, "must not be negative")
        base = change(load_recipe(self.recipe), list(self.options))
        check_out(self.out, folder=True)
        # Seed by seed, so that an unfinished study has every arm.
        seeds = range(first, first + self.seeds)
        jobs = [self._job(arm, seed, base) for seed in seeds for arm in self.arms]
        for job in jobs:
            job.check()
        return jobs

    def _job(self, arm: Arm, seed: int, base: Mapping[str, Any]) -> Job:
        tokens = self.tokens
        if tokens is None:
            fix = "say how many tokens each run may generate"
            require(self.recipe == "quickstart", "--tokens", None, fix)
            tokens = QUICKSTART_TOKENS
        recipe = budgeted(arm.recipe(base, seed), tokens)
        recipe["training"].pop("output_dir", None)
        # All methods sample alike, also those whose preset has a temperature of its own.
        recipe["training"] = {"temperature": 1.0, "top_p": 1.0, **recipe["training"]}
        folder = self.out / arm.name / f"seed-{seed}"
        settings = curriculum_of(recipe)
        return Job(arm.name, arm.preset, seed, tokens, recipe, settings, self.truth, folder)

    def run(
        self,
        workers: int = 1,
        devices: Sequence[str] = (),
        limit: float | None = None,
        progress: StudyProgress | None = None,
    ) -> Outcome:
        """Run what is missing; see `run_jobs`."""
        jobs = self.jobs()
        places = list(devices) or default_devices(jobs[0].recipe)
        for place in places:
            fix = "name `cpu`, or GPUs by number, as in 0,1"
            require(place == "cpu" or place.isdecimal(), "--devices", place, fix)
        with sole(self.out, "--out"):
            self._note_order()
            return run_jobs(jobs, workers, places, limit, progress)

    def _note_order(self) -> None:
        """study.json lists the methods in the order of the tables, those of earlier calls first."""
        names = dict.fromkeys([*study_order(self.out), *(arm.name for arm in self.arms)])
        write_json(self.out / "study.json", {"methods": list(names)})


def default_devices(recipe: dict[str, Any]) -> list[str]:
    """The CPU for the built-in policy, which is too small to gain from a GPU; else every GPU."""
    import torch

    if recipe.get("model", "pocket") == "pocket" or not torch.cuda.is_available():
        return ["cpu"]
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible[:count] if len(visible) >= count and visible[0] else list(map(str, range(count)))
