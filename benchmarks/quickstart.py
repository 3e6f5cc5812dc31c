"""The quickstart over several seeds: accuracy at equal generated tokens, with intervals.

    python benchmarks/quickstart.py --seeds 5 --workers 2 --out docs/results/quickstart.json

Every run starts from the shipped policy, trains on the shipped problems and stops when it has
generated `--tokens` tokens, probes included. Runs are separate processes of one thread each.
`--arm 'NAME=PRESET --field value ...'` runs other lines instead. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PRESETS = ("grpo", "paper", "dare")


def child(job: dict[str, Any]) -> None:
    """One run, in a process of its own."""
    import torch

    torch.set_num_threads(1)
    from dare.study.quickstart import one_run
    from dare.training.recipe import change, load_recipe

    recipe = change(load_recipe("quickstart"), job["options"])
    recipe["preset"] = job["preset"]
    recipe["eval_data"] = {"tasks": {"count": job["problems"], "seed": 1, "split": "test"}}
    one_run(recipe, Path(job["folder"]), job["tokens"])


def run_all(jobs: list[dict[str, Any]], workers: int, limit: float) -> None:
    """At most `workers` processes at a time; a run that outlives the limit is stopped."""
    waiting = list(jobs)
    running: list[tuple[dict[str, Any], subprocess.Popen[bytes], float]] = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    start = time.time()
    while waiting or running:
        while waiting and len(running) < workers:
            job = waiting.pop(0)
            if (Path(job["folder"]) / "estimation.json").exists():
                continue  # finished in an earlier call
            Path(job["folder"]).mkdir(parents=True, exist_ok=True)
            command = [sys.executable, __file__, "--child", json.dumps(job)]
            with open(f"{job['folder']}.log", "w") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            running.append((job, process, time.time()))
        time.sleep(0.5)
        for item in list(running):
            job, process, began = item
            if process.poll() is not None:
                running.remove(item)
                state = "done" if process.returncode == 0 else f"failed ({process.returncode})"
                print(f"{time.time() - start:5.0f} s  {job['name']} seed {job['seed']}: {state}")
            elif time.time() - began > limit:
                process.kill()


def curve(folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a run, finished or not."""
    path = folder / "eval.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def interval(values: list[float]) -> list[float]:
    """Mean and the ends of a 95 % bootstrap interval over seeds."""
    array = np.asarray(values, dtype=float)
    draws = np.random.default_rng(0).choice(array, size=(2000, len(array)))
    low, high = np.quantile(draws.mean(axis=1), [0.025, 0.975])
    return [round(float(v), 4) for v in (array.mean(), low, high)]


def summary(jobs: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """Per arm: curves on a common grid of tokens, final figures, speed to GRPO's end."""
    arms: dict[str, Any] = {}
    grid = np.linspace(0, tokens, 21)
    for name in dict.fromkeys(job["name"] for job in jobs):
        runs = []
        for job in jobs:
            line = curve(Path(job["folder"])) if job["name"] == name else []
            if len(line) < 2:
                continue
            folder = Path(job["folder"])
            metrics = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
            extra = folder / "estimation.json"
            runs.append(
                {
                    "seed": job["seed"],
                    "eval": line,
                    "metrics": metrics,
                    "estimation": json.loads(extra.read_text()) if extra.exists() else None,
                }
            )
        if not runs:
            continue
        on_grid = [
            np.interp(
                grid,
                [e["generated_tokens_total"] for e in run["eval"]],
                [e["accuracy"] for e in run["eval"]],
            )
            for run in runs
        ]
        levels = sorted(runs[0]["eval"][-1]["by_level"], key=int)
        arms[name] = {
            "seeds": [run["seed"] for run in runs],
            "tokens_grid": [round(float(t)) for t in grid],
            "accuracy": [interval([c[i] for c in on_grid]) for i in range(len(grid))],
            "accuracy_by_seed": [[round(float(v), 4) for v in c] for c in on_grid],
            "final": interval([run["eval"][-1]["accuracy"] for run in runs]),
            "length": interval([run["eval"][-1]["tokens"] for run in runs]),
            "steps": interval([run["metrics"][-1]["step"] + 1 for run in runs]),
            "varied_groups": interval(
                [np.mean([m.get("varied_groups", 0) for m in run["metrics"]]) for run in runs]
            ),
            "by_level": {
                level: {
                    key: interval([run["eval"][-1]["by_level"][level][key] for run in runs])
                    for key in ("accuracy", "tokens")
                }
                for level in levels
            },
            "start_by_level": {
                level: {
                    key: interval([run["eval"][0]["by_level"][level][key] for run in runs])
                    for key in ("accuracy", "tokens")
                }
                for level in levels
            },
            "seconds": round(
                float(
                    np.mean([sum(sum(m["seconds"].values()) for m in r["metrics"]) for r in runs])
                )
            ),
        }
        errors = [run["estimation"] for run in runs if run["estimation"]]
        if errors:
            arms[name]["estimation_mae"] = interval([e["mae"] for e in errors])
            arms[name]["fresh_mae"] = interval([e["mae_fresh"] for e in errors])
        arms[name]["_runs"] = runs
    base = arms.get("grpo")
    for arm in arms.values():
        if base is not None:
            shared = [s for s in arm["seeds"] if s in base["seeds"]]
            ends = {run["seed"]: run["eval"][-1]["accuracy"] for run in base["_runs"]}
            targets = {seed: ends[seed] for seed in shared}
            arm["to_target"] = [_first(run, targets.get(run["seed"])) for run in arm["_runs"]]
    for arm in arms.values():
        del arm["_runs"]
    return {"tokens": tokens, "arms": arms}


def _first(run: dict[str, Any], target: float | None) -> dict[str, Any] | None:
    """Step and tokens at which a run first evaluates at or above the target."""
    for line in run["eval"][1:]:
        if target is not None and line["accuracy"] >= target:
            return {"step": line["step"], "tokens": line["generated_tokens_total"]}
    return None


def main() -> None:
    """Run what is missing, then sum up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=850_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--problems", type=int, default=1024, help="held-out problems")
    parser.add_argument("--limit", type=float, default=3600, help="seconds a run may take")
    parser.add_argument("--runs", type=Path, default=Path("runs/quickstart-study"))
    parser.add_argument("--arm", action="append", help="NAME=PRESET --field value ...")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(json.loads(options.child))
        return
    arms = options.arm or [f"{preset}={preset}" for preset in PRESETS]
    jobs = []
    for seed in range(options.seeds):
        for arm in arms:
            name, _, rest = arm.partition("=")
            preset, *changes = shlex.split(rest)
            jobs.append(
                {
                    "name": name,
                    "preset": preset,
                    "seed": seed,
                    "options": ["--seed", str(seed), "--save-strategy", "no", *changes],
                    "folder": str(options.runs / f"{name}-{seed}"),
                    "tokens": options.tokens,
                    "problems": options.problems,
                }
            )
    run_all(jobs, options.workers, options.limit)
    figures = summary(jobs, options.tokens)
    for name, arm in figures["arms"].items():
        accuracy = [a[0] for a in arm["accuracy"][::4]]
        print(
            f"{name:24} {accuracy}  final {arm['final']}  length {arm['length'][0]:.1f}  "
            f"varied {arm['varied_groups'][0]:.2f}  steps {arm['steps'][0]:.0f}  "
            f"mae {arm.get('estimation_mae', ['-'])[0]} fresh {arm.get('fresh_mae', ['-'])[0]}  "
            f"{arm['seconds']} s"
        )
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    brief = {
        n: {"final": a["final"], "to_target": a.get("to_target")}
        for n, a in figures["arms"].items()
    }
    print(json.dumps(brief))


if __name__ == "__main__":
    main()
