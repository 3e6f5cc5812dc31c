"""Curricula on a simulated learner: presets and ablations at equal numbers of generated rollouts.

    python benchmarks/simulation.py --suite presets --prompts 35000 --rollouts 512000
    python benchmarks/simulation.py --suite selection --out selection.json
    python benchmarks/simulation.py --suite scale --prompts 10000000 --steps 20

The last line printed is one JSON object with all figures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from simulated import SimulatedLearner, simulate

from dare.config import CurriculumConfig
from dare.evaluation.intervals import student
from dare.study.tables import show as within

ASSUMPTIONS = """\
Assumptions of the simulated learner
- log-odds of success = slope x (half the topic's general skill, half a skill shared with prompts
  of about equal hardness) - hardness; nothing is memorised per prompt
- hardness as in DeepScaleR under Qwen2.5-Math-7B; learning speed and its spread over prompts as in
  a real GRPO run (+1 log-odds in 430 steps of uniform draws), by SGD on the clipped objective
- outcome and length are independent, except that a response longer than its budget fails
- a hint adds 1.5 log-odds, thinking longer 0.3; both are guesses
It can compare what selection, estimation and group sizes do to the amount and the place of the
learning signal. It cannot say how a language model generalises, what Adam makes of small gradients,
or what hints and lengths do to real reasoning."""

# The line that others are compared with: the default when the figures were taken, or the first.
BASES = ("dare", "kappa 16, eta 0.3", "explore 0.5, floor 0.1", "K 32")
KAPPA_ETA = [(kappa, eta) for kappa in (4, 16, 100) for eta in (0.0, 0.1, 0.3, 0.5)]
EXPLORE = [(0.1, 0.0), (0.1, 0.1), (0.3, 0.1), (0.5, 0.1), (0.8, 0.1), (0.3, 0.3)]

Job = tuple[str, str, dict[str, Any], dict[str, Any]]


def jobs(suite: str) -> Iterator[Job]:
    """(name, preset, changes of the configuration, changes of the world) of each line."""
    if suite == "presets":
        for preset in ("dare", "paper", "grpo", "mopps", "previous-fr"):
            yield preset, preset, {}, {}
        yield "dare, no tiers", "dare", {"tiers": False}, {}
        yield "dare, eta 0.1", "dare", _draw(16, 0.1), {}
        changes = _draw(16, 0.3) | {"selection.explore_start": 0.5}
        yield "dare, eta 0.3, explore 0.5", "dare", changes, {}
    elif suite in ("selection", "eta"):
        fine = [(16, 0.3), (16, 0.15), (16, 0.2), (32, 0.15)]
        for kappa, share in KAPPA_ETA if suite == "selection" else fine:
            yield f"kappa {kappa}, eta {share}", "dare", _draw(kappa, share), {}
    elif suite == "explore":
        for start, floor in EXPLORE:
            changes = {"selection.explore_start": start, "selection.explore_floor": floor}
            yield f"explore {start}, floor {floor}", "dare", _draw() | changes, {}
        yield "explore off", "dare", _draw() | {"selection.explore": "off"}, {}
    elif suite == "memory":
        for k in (8, 16, 32):
            yield f"K {k}", "dare", _draw() | {"buffer.rollouts_per_prompt": k}, {}
        for fresh in (0.75, 0.5):
            yield f"fresh share {fresh}", "dare", _draw() | {"fresh_share": fresh}, {}
    elif suite == "transfer":
        for transfer in (0.1, 0.9):
            for share in (0.0, 0.3):
                world = {"transfer": transfer}
                yield f"transfer {transfer}, eta {share}", "dare", _draw(16, share), world
    else:
        yield "dare", "dare", {}, {}


def _draw(kappa: float = 16, eta: float = 0.3) -> dict[str, Any]:
    """Fixed here, so that a suite does not change with the defaults."""
    return {"selection.name": "beta", "selection.kappa": kappa, "selection.eta": eta}


def play(job: Job, seed: int, options: dict[str, Any]) -> dict[str, float]:
    """One run; shares are means over it, the rest its end."""
    _, preset, changes, world = job
    prompts = options["prompts"]
    # Without replay, unless a line is about it: what is compared is the choice of prompts.
    config = CurriculumConfig.preset(preset, seed=seed, **{"fresh_share": 1.0, **changes})
    started = time.perf_counter()
    learner = SimulatedLearner(prompts, seed=seed, **world)
    steps = options["steps"] or 10**9
    every = max(1, min(steps, options["rollouts"] // config.rollout_budget) // 20)
    columns = simulate(
        config, learner, steps, True, every, options["rollouts"], embeddings=prompts <= 10**6
    )
    # Runs end on whole steps and some start with probes: read the curve at the same abscissa.
    budget = min(options["rollouts"], int(columns["generated"][-1]))
    reached = np.interp(budget, columns["generated"], columns["accuracy"])
    figures = {"gain": float(reached - columns["accuracy"][0])}
    for name in ("length", "mae_seen", "mae_all", "intrinsic_seen", "coverage"):
        figures[name] = float(columns[name][-1])
    for name in ("varied", "mae_drawn", "true_easy", "true_medium", "true_hard", "easy", "hard"):
        figures[name] = float(np.nanmean(columns[name]))
    trained = max(int(columns["step"][-1]), 1)
    figures["ms_per_step"] = 1e3 * float(columns["seconds"][-1]) / trained
    figures["seconds"] = time.perf_counter() - started
    figures["cpu_seconds"] = time.process_time()
    figures["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return figures


def interval(values: np.ndarray[Any, Any]) -> list[float | None]:
    """Mean and its 95 % interval over seeds (Student's t); of one seed the mean alone."""
    return [None if value is None else round(value, 5) for value in student(values.tolist())]


def summarise(runs: dict[str, list[dict[str, float]]], base: str) -> dict[str, Any]:
    """Per line: mean and interval of every figure, and the gain over `base` paired by seed."""
    result: dict[str, Any] = {}
    reference = np.array([run["gain"] for run in runs[base]])
    for name, lines in runs.items():
        figures = {key: interval(np.array([run[key] for run in lines])) for key in lines[0]}
        difference = np.array([run["gain"] for run in lines]) - reference
        figures["over_base"] = interval(difference)
        result[name] = figures
    return result


def show(console: Console, title: str, summary: dict[str, Any]) -> None:
    """The table for people; the JSON line has every figure."""
    table = Table(title=title)
    table.add_column("")
    heads = "accuracy gained,less default,true easy/medium/hard %,planned e/h %,varied %,MAE seen,"
    for head in (heads + "of 8 fresh,MAE drawn,coverage %,length,ms/step").split(","):
        table.add_column(head, justify="right")
    for name, row in summary.items():
        mean = {key: value[0] for key, value in row.items()}
        tiers = "/".join(f"{100 * mean[f'true_{t}']:.0f}" for t in ("easy", "medium", "hard"))
        cells = [name]
        cells += [within(row[key], "{:.4f}") for key in ("gain", "over_base")]
        planned = f"{100 * mean['easy']:.0f}/{100 * mean['hard']:.0f}"
        cells += [tiers, planned, f"{100 * mean['varied']:.0f}"]
        cells += [f"{mean[key]:.3f}" for key in ("mae_seen", "intrinsic_seen", "mae_drawn")]
        cells += [f"{100 * mean['coverage']:.0f}", f"{mean['length']:.2f}"]
        cells.append(f"{mean['ms_per_step']:.0f}")
        table.add_row(*cells)
    console.print(table)


def main() -> None:
    """Run one suite."""
    suites = ("presets", "selection", "explore", "eta", "memory", "transfer", "scale")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--suite", choices=suites, default="presets")
    parser.add_argument("--prompts", type=int, default=8000)
    parser.add_argument("--rollouts", type=int, default=102_400, help="generated in each run")
    parser.add_argument("--steps", type=int, default=0, help="stop earlier; 0 for no limit")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = vars(parser.parse_args())
    if options["rollouts"] < 4096:
        parser.error("--rollouts must be at least 4096: a cold start alone takes 2048")
    console = Console(width=200)
    console.print(ASSUMPTIONS, highlight=False)
    lines = list(jobs(options["suite"]))
    runs: dict[str, list[dict[str, float]]] = {
        name: [{} for _ in range(options["seeds"])] for name, *_ in lines
    }
    base = next((name for name in BASES if name in runs), lines[0][0])
    # Spawned, not forked: a worker's peak memory must be its own.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options["workers"], context, max_tasks_per_child=1) as pool:
        waiting = {
            pool.submit(play, job, seed, options): (job[0], seed)
            for seed in range(options["seeds"])
            for job in lines
        }
        for done in track(as_completed(waiting), options["suite"], len(waiting), console=console):
            name, seed = waiting[done]
            runs[name][seed] = done.result()
    summary = summarise(runs, base)
    sizes = f"{options['prompts']:,} prompts, {options['rollouts']:,} rollouts"
    title = f"{options['suite']}: {sizes}, {options['seeds']} seeds, 95 % intervals (Student's t)"
    show(console, title, summary)
    settings = {key: options[key] for key in ("suite", "prompts", "rollouts", "steps", "seeds")}
    figures = {**settings, "base": base, "lines": summary}
    if options["out"]:
        options["out"].write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
