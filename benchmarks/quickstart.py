"""The quickstart over several seeds: accuracy at equal generated tokens, with intervals.

    python benchmarks/quickstart.py --seeds 5 --workers 2 --out docs/results/quickstart.json

A study of the methods (`dare study methods`) on the shipped policy and problems. Every run stops
when it has generated `--tokens` tokens, probes included. `--arm 'NAME=PRESET --field value ...'`
runs other lines instead. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dare.evaluation.intervals import student
from dare.runs.methods import Run, by_method, load_runs
from dare.study.methods import Study, arms_of
from dare.study.metrics import mean_of, reached, seconds
from dare.study.runner import StudyProgress

PRESETS = ("grpo", "paper", "dare")


def interval(values: Sequence[float | None]) -> list[float | None]:
    """Mean and the ends of its 95 % interval over seeds (Student's t)."""
    return [None if value is None else round(value, 4) for value in student(values)]


def on_grid(run: Run, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Accuracy of a run at these numbers of generated tokens."""
    tokens = [line["generated_tokens_total"] for line in run.eval]
    return np.interp(grid, tokens, [line["accuracy"] for line in run.eval])


def by_level(runs: list[Run], place: int) -> dict[str, Any]:
    """Accuracy and tokens by level at the first or last evaluation."""
    return {
        level: {
            key: interval([run.eval[place]["by_level"][level][key] for run in runs])
            for key in ("accuracy", "tokens")
        }
        for level in sorted(runs[0].eval[place]["by_level"], key=int)
    }


def summary(runs: Sequence[Run], tokens: int) -> dict[str, Any]:
    """Per arm: curves on a common grid of tokens, final figures, speed to GRPO's end."""
    groups = by_method(runs)
    ends = {run.seed: run.eval[-1]["accuracy"] for run in groups.get("grpo", [])}
    grid = np.linspace(0, tokens, 21)
    arms: dict[str, Any] = {}
    for name, group in groups.items():
        curves = [on_grid(run, grid) for run in group]
        arm = arms[name] = {
            "seeds": [run.seed for run in group],
            "tokens_grid": [round(float(place)) for place in grid],
            "accuracy": [interval([curve[i] for curve in curves]) for i in range(len(grid))],
            "accuracy_by_seed": [[round(float(v), 4) for v in curve] for curve in curves],
            "final": interval([run.eval[-1]["accuracy"] for run in group]),
            "length": interval([run.eval[-1]["tokens"] for run in group]),
            "steps": interval([run.metrics[-1]["step"] + 1 for run in group]),
            "varied_groups": interval([mean_of(run.metrics, "varied_groups") for run in group]),
            "by_level": by_level(group, -1),
            "start_by_level": by_level(group, 0),
            "seconds": interval([seconds(run.metrics) for run in group]),
        }
        errors = [run.estimation for run in group if run.estimation]
        if errors:
            arm["estimation_mae"] = interval([error["mae"] for error in errors])
            arm["fresh_mae"] = interval([error["mae_fresh"] for error in errors])
        if ends:
            arm["to_target"] = [first(run, ends.get(run.seed)) for run in group]
    return {"tokens": tokens, "arms": arms}


def first(run: Run, target: float | None) -> dict[str, Any] | None:
    """Step and tokens at which a run first evaluates at or above the target."""
    line = None if target is None else reached(run.eval[1:], target)
    return line and {"step": line["step"], "tokens": line["generated_tokens_total"]}


def main() -> None:
    """Run what is missing, then sum up."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=850_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--problems", type=int, default=1024, help="held-out problems")
    parser.add_argument("--limit", type=float, default=3600, help="seconds a run may take")
    parser.add_argument("--runs", type=Path, default=Path("runs/quickstart-study"))
    parser.add_argument("--arm", action="append", help="NAME=PRESET --field value ...")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    arms = arms_of([] if options.arm else PRESETS, options.arm or [])
    held_out = f"{{tasks: {{count: {options.problems}, seed: 1, split: test}}}}"
    study = Study(
        arms,
        options.runs,
        options.seeds,
        options.tokens,
        options=["--eval-data", held_out],
        truth=True,
    )
    study.run(options.workers, ["cpu"], options.limit, StudyProgress())
    finished = [job.folder for job in study.jobs() if job.done]
    figures = summary(load_runs(finished)[0], options.tokens)
    for name, arm in figures["arms"].items():
        accuracy = [value[0] for value in arm["accuracy"][::4]]
        print(
            f"{name:24} {accuracy}  final {arm['final']}  length {arm['length'][0]:.1f}  "
            f"varied {arm['varied_groups'][0]:.2f}  steps {arm['steps'][0]:.0f}  "
            f"mae {arm['estimation_mae'][0]} fresh {arm['fresh_mae'][0]}  {arm['seconds'][0]} s"
        )
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    brief = {
        name: {"final": arm["final"], "to_target": arm.get("to_target")}
        for name, arm in figures["arms"].items()
    }
    print(json.dumps(brief))


if __name__ == "__main__":
    main()
