"""What an accuracy costs with more or less replay: the rule behind the default of sigma.

    dare study sweep --field sigma --values 0.125,0.25,0.5,0.75,1 --seeds 5 --first-seed 100 \
        --tokens 300000 --out runs/sigma
    python benchmarks/fresh_share.py runs/sigma [--base fresh_share=0.25] [--out FILE]

The fewer rollouts of a step are new, the more steps a generated token gives and the more training
and refreshing it takes. So a step costs tokens generated, trained on and refreshed (rescored or
read), each at its price; by default what they took on an H200 with a 1.5B model, relative to a
trained token. The cost of an accuracy is
where the mean curve of all seeds first has it, straight between evaluations. Its 95 % interval are
the costs at which the accuracy may be that of the target, by Student's t over seeds: from where the
upper end of the mean's interval reaches it to where the lower end does. Methods are held against
the base by their accuracies at what the target cost the base, in pairs of seeds. Ends with one
JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.evaluation.intervals import student, t_quantile
from dare.runs.methods import Run, by_method, load_runs

SPENT = ("generated", "trained", "refreshed")
PLACES = 2001


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


def first(grid: Array, accuracy_P: Array, target: float) -> float | None:
    """Where a curve first has the target, None if it never does."""
    hit = np.flatnonzero(accuracy_P >= target)
    return float(grid[hit[0]]) if len(hit) else None


def cost(grid: Array, accuracy_SP: Array, target: float) -> list[float | None]:
    """Where the mean over seeds first has the target, and the interval of that place.

    None is a place beyond the runs; of one seed there is no interval.
    """
    mean, seeds = accuracy_SP.mean(0), len(accuracy_SP)
    curves = [mean]
    if seeds > 1:
        half = t_quantile(seeds - 1) * accuracy_SP.std(0, ddof=1) / np.sqrt(seeds)
        curves += [mean + half, mean - half]
    found = [first(grid, curve, target) for curve in curves]
    rounded = [None if at is None else round(at) for at in found]
    return [*rounded, *[None] * (3 - len(rounded))]


def at_cost(group: Sequence[Run], prices: Sequence[float], place: float) -> list[float] | None:
    """Accuracy of each seed after so much was spent, None where one of them ended before."""
    curves = [curve(run, prices) for run in group]
    if min(spent[-1] for spent, _ in curves) < place:
        return None
    return [float(np.interp(place, spent, value)) for spent, value in curves]


def method(
    group: Sequence[Run], prices: Sequence[float], targets: Sequence[float]
) -> dict[str, Any]:
    """What each accuracy costs one method: [of the mean curve, low, high]."""
    grid, accuracy = on_grid([curve(run, prices) for run in group])
    return {
        "seeds": [run.seed for run in group],
        "final": [run.eval[-1]["accuracy"] for run in group],
        "cost": {str(target): cost(grid, accuracy, target) for target in targets},
    }


def gain(
    own: Sequence[Run], base: Sequence[Run], prices: Sequence[float], place: float | None
) -> list[float | None]:
    """[mean, low, high] of own - base after so much was spent, in pairs of seeds."""
    if place is None or [run.seed for run in own] != [run.seed for run in base]:
        return [None, None, None]
    both = [at_cost(group, prices, place) for group in (own, base)]
    if both[0] is None or both[1] is None:
        return [None, None, None]
    found = student([a - b for a, b in zip(*both, strict=True)])
    return [None if value is None else round(value, 4) for value in found]


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
    groups = by_method(runs)
    methods = {name: method(group, prices, targets) for name, group in groups.items()}
    base = options.base or next(iter(methods))
    if base not in methods:
        parser.error(f"--base {base}: is none of {', '.join(methods)}")
    for name, figures in methods.items():
        if name != base:
            figures["gain_at_base_cost"] = {
                target: gain(groups[name], groups[base], prices, place[0])
                for target, place in methods[base]["cost"].items()
            }
        print(name, figures["cost"], figures.get("gain_at_base_cost", ""))
    figures = {"prices": dict(zip(SPENT, prices, strict=True)), "methods": methods}
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
