"""What an accuracy costs with more or less replay: the rule behind the default of sigma.

    dare study sweep --field sigma --values 0.125,0.25,0.5,0.75,1 --seeds 5 --first-seed 100 \
        --tokens 300000 --out runs/sigma
    python benchmarks/fresh_share.py runs/sigma [--base fresh_share=0.25] [--out FILE]

The fewer rollouts of a step are new, the more steps a generated token gives and the more training
and refreshing it takes. So a step costs tokens generated, trained on and refreshed (rescored or
read), each at its price; by default what they took on an H200 with a 1.5B model
(docs/results/estimators_gpu_half.json), relative to a trained token. The cost of an accuracy is
where the mean curve of all seeds first has it, straight between evaluations; intervals are of
seeds drawn again. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.study.runs import Run, by_method, load_runs

SPENT = ("generated", "trained", "refreshed")
PLACES = 2001
DRAWS = 2000


def curve(run: Run, prices: Sequence[float]) -> tuple[Array, Array]:
    """What had been spent at every evaluation, and the accuracy there."""
    spent = [
        sum(price * line["tokens"].get(name, 0) for name, price in zip(SPENT, prices, strict=True))
        for line in run.metrics
    ]
    total = np.concatenate([[0.0], np.cumsum(spent)])
    steps = np.concatenate([[0], [line["step"] + 1 for line in run.metrics]])
    place = np.interp([line["step"] for line in run.eval], steps, total)
    return place, np.array([line["accuracy"] for line in run.eval], dtype=float)


def on_grid(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """One grid up to where the first run ended, and every run's accuracy on it."""
    grid = np.linspace(0.0, min(place[-1] for place, _ in curves), PLACES)
    return grid, np.array([np.interp(grid, place, value) for place, value in curves])


def cost(grid: Array, accuracy_SP: Array, target: float) -> float | None:
    """Where the mean over seeds first has the target, None if it never does."""
    hit = np.flatnonzero(accuracy_SP.mean(0) >= target)
    return float(grid[hit[0]]) if len(hit) else None


def drawn(grid: Array, accuracy_SP: Array, target: float) -> Array:
    """`cost` over seeds drawn again, the same ones for every method; infinite if never."""
    rng = np.random.default_rng(0)
    seeds = len(accuracy_SP)
    costs = [cost(grid, accuracy_SP[rng.integers(seeds, size=seeds)], target) for _ in range(DRAWS)]
    return np.array([np.inf if value is None else value for value in costs])


def interval(costs: Array) -> list[float | None]:
    """The middle 95 %; None is an end that lies beyond the runs."""
    ends = np.sort(costs)[[int(0.025 * DRAWS), int(0.975 * DRAWS)]]
    return [round(float(end)) if np.isfinite(end) else None for end in ends]


def method(
    group: Sequence[Run], prices: Sequence[float], targets: Sequence[float]
) -> dict[str, Any]:
    """What each accuracy costs one method: [mean, low, high], and the draws behind them."""
    grid, accuracy = on_grid([curve(run, prices) for run in group])
    draws = {target: drawn(grid, accuracy, target) for target in targets}
    found = {target: cost(grid, accuracy, target) for target in targets}
    return {
        "seeds": [run.seed for run in group],
        "final": [run.eval[-1]["accuracy"] for run in group],
        "cost": {
            str(target): [None if at is None else round(at), *interval(draws[target])]
            for target, at in found.items()
        },
        "draws": draws,
    }


def main() -> None:
    """The cost of three accuracies, for every method of a study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", nargs="+", help="folders of runs")
    parser.add_argument("--base", help="what others are held against, otherwise the first")
    parser.add_argument("--target", type=float, default=0.49)
    parser.add_argument("--prices", default="2,1,0.5", help="of a " + ", ".join(SPENT) + " token")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        prices = [float(word) for word in options.prices.split(",")]
    except ValueError:
        prices = []
    if len(prices) != len(SPENT):
        parser.error(f"--prices {options.prices}: give three numbers, like 2,1,0.5")
    runs, unfinished = load_runs(options.study)
    for folder in unfinished:
        print(f"left out, not finished: {folder}")
    targets = [round(options.target + change, 4) for change in (-0.01, 0.0, 0.01)]
    methods = {name: method(group, prices, targets) for name, group in by_method(runs).items()}
    base_name = options.base or next(iter(methods))
    if base_name not in methods:
        parser.error(f"--base {base_name}: is none of {', '.join(methods)}")
    draws = {name: figures.pop("draws") for name, figures in methods.items()}
    base = methods[base_name]["seeds"]
    for name, figures in methods.items():
        if name != base_name and figures["seeds"] == base:  # otherwise not in pairs
            figures["cost_less_base"] = {
                str(target): interval(draws[name][target] - draws[base_name][target])
                for target in targets
                if np.isfinite(draws[base_name][target]).all()
            }
        print(name, figures["cost"], figures.get("cost_less_base", ""))
    figures = {"prices": dict(zip(SPENT, prices, strict=True)), "methods": methods}
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
