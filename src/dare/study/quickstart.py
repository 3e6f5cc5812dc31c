"""The quickstart: GRPO and DARE from the same start with the same generated tokens."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dare.errors import InvalidInput
from dare.runs.files import check_out, write_json
from dare.runs.methods import Run, load_runs
from dare.study.comparison import run_figures
from dare.study.single import estimation_error, train
from dare.training.progress import RichProgress
from dare.training.recipe import change, load_recipe


def run_quickstart(
    folder: Path,
    presets: Sequence[str] = ("grpo", "dare"),
    seed: int = 42,
    options: Sequence[str] = (),
) -> dict[str, Run]:
    """Every preset in turn, each with its error against the truth; read back from their folders.

    The first runs its steps; the others get the tokens it generated.
    """
    check_out(folder, folder=True, field="--folder")
    if os.path.exists(folder):
        # Never remove what this command did not write.
        strangers = [p.name for p in folder.iterdir() if p.name not in (*presets, "report.html")]
        if strangers:
            fix = "holds other files; choose another folder"
            raise InvalidInput("folder", f"{folder} ({strangers[0]}, ...)", fix)
        shutil.rmtree(folder)
    # The matrices are tiny: threads would only wait for each other, on a busy machine very long.
    torch.set_num_threads(1)
    recipe = change(load_recipe("quickstart"), ["--seed", str(seed), *options])
    budget = None
    for preset in presets:
        settings = {**recipe, "preset": preset}
        if budget is not None:
            # The budget ends the run; steps only bound a method that generates hardly anything,
            # as one that replays most of a step does.
            most = 6 * int(recipe["training"]["max_steps"])
            settings["training"] = {**recipe["training"], "max_steps": most}
        trainer = train(settings, folder / preset, budget, [RichProgress(preset, tokens=budget)])
        trainer.raise_stopped()
        write_json(folder / preset / "estimation.json", estimation_error(trainer))
        budget = budget or trainer.generated_tokens
    runs, _ = load_runs([f"{preset}={folder / preset}" for preset in presets])
    return {run.method: run for run in runs}


def compare(runs: Mapping[str, Run]) -> dict[str, Any]:
    """The figures behind the table: by preset, and the steps each took to the first's end."""
    base = next(iter(runs.values()))
    target = float(base.eval[-1]["accuracy"])
    presets = {}
    for name, run in runs.items():
        # A start that is good enough has not been reached by training.
        later = replace(run, eval=[line for line in run.eval if line["step"] > 0] or run.eval)
        figures = run_figures(later, {base.seed: base}, target)
        presets[name] = {**figures, "start_accuracy": run.eval[0]["accuracy"]}
    return {"target": target, "presets": presets}
