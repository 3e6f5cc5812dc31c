"""The quickstart: GRPO and DARE from the same start with the same generated tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dare.errors import InvalidInput
from dare.study.metrics import seconds, until
from dare.study.single import train
from dare.study.truth import estimation_error
from dare.training.progress import RichProgress
from dare.training.recipe import change, load_recipe
from dare.training.trainer import DareTrainer


def one_run(
    recipe: dict[str, Any], folder: Path, token_budget: int | None = None
) -> tuple[DareTrainer, dict[str, Any]]:
    """Train one preset; returns the trainer and its curves, read back from the run folder."""
    callbacks = [RichProgress(str(recipe["preset"]), tokens=token_budget)]
    settings = dict(recipe)
    if token_budget is not None:
        # The budget ends the run; steps only bound a method that generates hardly anything, as
        # one that replays most of a step does.
        most = 6 * int(recipe["training"]["max_steps"])
        settings["training"] = {**recipe["training"], "max_steps": most}
    trainer = train(settings, folder, token_budget, callbacks)
    error = estimation_error(trainer)
    (folder / "estimation.json").write_text(json.dumps(error) + "\n", encoding="utf-8")
    return trainer, read_run(folder)


def read_run(folder: Path) -> dict[str, Any]:
    """What a finished run left in its folder."""

    def lines(name: str) -> list[dict[str, Any]]:
        text = (folder / name).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    return {
        "metrics": lines("metrics.jsonl"),
        "eval": lines("eval.jsonl"),
        "selections": lines("selections.jsonl"),
        "estimation": json.loads((folder / "estimation.json").read_text(encoding="utf-8")),
    }


def run_quickstart(
    folder: Path,
    presets: Sequence[str] = ("grpo", "dare"),
    seed: int = 42,
    options: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """Every preset in turn. The first runs its steps; the others get the tokens it generated."""
    if folder.exists():
        # Never remove what this command did not write.
        strangers = [p.name for p in folder.iterdir() if p.name not in (*presets, "report.html")]
        if strangers:
            fix = "holds other files; choose another folder"
            raise InvalidInput("folder", f"{folder} ({strangers[0]}, ...)", fix)
        shutil.rmtree(folder)
    # The matrices are tiny: threads would only wait for each other, on a busy machine very long.
    torch.set_num_threads(1)
    recipe = change(load_recipe("quickstart"), ["--seed", str(seed), *options])
    runs: dict[str, dict[str, Any]] = {}
    budget = None
    for preset in presets:
        trainer, runs[preset] = one_run({**recipe, "preset": preset}, folder / preset, budget)
        budget = budget or trainer.generated_tokens
    return runs


def rows(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Title, key and format of each line of the table."""
    return [
        ("accuracy at the start", "start_accuracy", "{:.3f}"),
        ("accuracy at the end", "accuracy", "{:.3f}"),
        ("tokens a response", "tokens_per_response", "{:.1f}"),
        ("steps", "steps", "{}"),
        ("tokens generated", "generated_tokens", "{:,}"),
        (f"steps to accuracy {figures['target']:.3f}", "steps_to_target", "{}"),
        (f"tokens to accuracy {figures['target']:.3f}", "tokens_to_target", "{:,}"),
        ("seconds of training", "seconds", "{:.0f}"),
        (f"seconds to accuracy {figures['target']:.3f}", "seconds_to_target", "{:.0f}"),
        ("error of the difficulty estimate", "estimation_mae", "{:.3f}"),
        ("error of 8 fresh rollouts", "fresh_mae", "{:.3f}"),
    ]


def compare(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures behind the table: by preset, and the steps each took to the first's end."""
    base = next(iter(runs))
    target = float(runs[base]["eval"][-1]["accuracy"])
    result: dict[str, Any] = {"target": target, "presets": {}}
    for name, run in runs.items():
        evaluations = run["eval"]
        last = evaluations[-1]
        # Half a percent of slack would flatter: the target is reached or it is not.
        reached = [e for e in evaluations if e["step"] > 0 and e["accuracy"] >= target]
        result["presets"][name] = {
            "start_accuracy": evaluations[0]["accuracy"],
            "accuracy": last["accuracy"],
            "tokens_per_response": last["tokens"],
            "by_level": {
                level: {key: part[key] for key in ("accuracy", "tokens", "responses", "unscored")}
                for level, part in last["by_level"].items()
            },
            "steps": run["metrics"][-1]["step"] + 1,
            "generated_tokens": run["metrics"][-1]["generated_tokens_total"],
            "steps_to_target": reached[0]["step"] if reached else None,
            "tokens_to_target": reached[0]["generated_tokens_total"] if reached else None,
            "seconds": seconds(run["metrics"]),
            "seconds_to_target": seconds(until(run["metrics"], reached[0])) if reached else None,
            "estimation_mae": run["estimation"]["mae"],
            "fresh_mae": run["estimation"]["mae_fresh"],
        }
    return result
