"""How far forecasts of problems never tried are off, without a GPU: a probe of a model is replayed.

    python benchmarks/forecast.py --probe FOLDER [--layer 20] [--splits 24] [--out FILE.json]

FOLDER is what `probe_gpu.py` leaves (`rates.npz`, `layerNN.npy`). In each random split some
problems are left out, groups of 8 rollouts of others come in 32 a step, and after 128, 256 and 512
(and 1,024) groups the estimate of those left out is held against all of their rollouts. The mean of
their rates is a mean of 8 or 16 rollouts itself: an observer who knew the rate would still err.
Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track
from scipy import stats

from dare.curriculum.arrays import Array
from dare.curriculum.estimators import Measured, Outcome
from dare.curriculum.estimators.dare import LiveEstimator
from dare.evaluation.intervals import student

GROUP, A_STEP, AT = 8, 32, (128, 256, 512, 1024)
EDGES = np.linspace(0.0, 1.0, 6)


def read_probe(folder: Path, layer: int) -> dict[str, Array]:
    """Failures [P, rollouts], lengths, states and, where there are some, solution statistics."""
    held = np.load(folder / "rates.npz")

    def first(*names: str) -> Array:
        return np.asarray(next(held[name] for name in names if name in held.files), np.float64)

    probe = {
        "failed": 1.0 - first("right", "right_QG"),
        "tokens": first("length", "length_QG").mean(axis=1),
        "lengths": first("prompt_length", "prompt_tokens_Q"),
        "states": np.load(folder / f"layer{layer}.npy").astype(np.float32),
    }
    if "solution_statistics_QS" in held.files:
        probe["solutions"] = np.asarray(held["solution_statistics_QS"], np.float64)
    return probe


def estimators(probe: dict[str, Array]) -> dict[str, LiveEstimator]:
    """What is compared: each a LiveEstimator that is given more or less to read."""

    def measure(name: str) -> Any:
        return lambda rows: Measured(probe[name][rows], len(rows))

    count, states, lengths = len(probe["failed"]), measure("states"), probe["lengths"]
    made = {
        "mean of the groups": LiveEstimator(count),
        "states": LiveEstimator(count, states),
        "dare (states, length)": LiveEstimator(count, states, None, lengths),
    }
    if "solutions" in probe:
        made["solutions"] = LiveEstimator(count, None, measure("solutions"))
        made["dare, with solutions"] = LiveEstimator(count, states, measure("solutions"), lengths)
    return made


def one_split(probe: dict[str, Array], seed: int, left_out: int) -> dict[str, dict[int, Any]]:
    """Rates said of the problems left out, by estimator and number of groups."""
    failed = probe["failed"]
    rng = np.random.default_rng([seed, 17])
    order = rng.permutation(len(failed))
    test, rest = order[:left_out], order[left_out:]
    chosen = rng.permuted(np.tile(np.arange(failed.shape[1]), (len(failed), 1)), axis=1)[:, :GROUP]
    groups = np.take_along_axis(failed, chosen, axis=1).sum(axis=1)
    found: dict[str, dict[int, Any]] = {}
    for name, estimator in estimators(probe).items():
        for start in range(0, min(len(rest), max(AT)), A_STEP):
            rows = np.sort(rest[start : start + A_STEP])
            trials = np.full(len(rows), float(GROUP))
            # A probe is of one moment: all groups are of the policy of now.
            estimator.observe(Outcome(0, rows, trials, groups[rows], probe["tokens"][rows]))
            if not start:
                estimator.read(0, np.random.default_rng(0), 0)
            if start + len(rows) in AT:
                said = estimator.difficulty()[test], estimator.evidence()[test]
                found.setdefault(name, {})[start + len(rows)] = (*said, failed[test])
    return found


def figures_of(splits: list[tuple[Array, Array, Array]]) -> dict[str, Any]:
    """Errors, correlation and calibration over splits."""
    errors = [said - failed.mean(axis=1) for said, _, failed in splits]
    mean, low, high = student([float(np.abs(error).mean()) for error in errors])
    said = np.concatenate([one[0] for one in splits])
    worth = np.concatenate([one[1] for one in splits])
    failures = np.concatenate([one[2].sum(axis=1) for one in splits])
    size = splits[0][2].shape[1]
    place = np.clip(np.digitize(said, EDGES) - 1, 0, len(EDGES) - 2)
    belief = stats.betabinom(size, said * worth, (1.0 - said) * worth)
    inside = (belief.cdf(failures) > 0.1) & (belief.cdf(failures - 1) < 0.9)
    return {
        "mae": round(mean or 0.0, 4),
        "mae_interval": None if low is None or high is None else [round(low, 4), round(high, 4)],
        "mse": round(float(np.mean([(error**2).mean() for error in errors])), 4),
        "correlation": round(
            float(np.mean([np.corrcoef(s, f.mean(axis=1))[0, 1] for s, _, f in splits])), 3
        )
        if min(float(one[0].std()) for one in splits) > 1e-6
        else None,
        "inside_80": round(float(inside.mean()), 3),
        "bins": [
            [
                round(float(said[place == one].mean()), 3),
                round(float(failures[place == one].mean() / size), 3),
                int((place == one).sum()),
            ]
            for one in range(len(EDGES) - 1)
            if (place == one).any()
        ],
    }


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--probe", type=Path, required=True)
    parser.add_argument("--layer", type=int, default=20)
    parser.add_argument("--splits", type=int, default=24)
    parser.add_argument("--left-out", type=int, default=256)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    probe = read_probe(options.probe, options.layer)
    collected: dict[str, dict[int, list[tuple[Array, Array, Array]]]] = {}
    for seed in track(range(options.splits), description="splits"):
        for name, points in one_split(probe, seed, options.left_out).items():
            for groups, said in points.items():
                collected.setdefault(name, {}).setdefault(groups, []).append(said)
    table = {
        name: {str(groups): figures_of(said) for groups, said in points.items()}
        for name, points in collected.items()
    }
    reached = [str(groups) for groups in AT if str(groups) in table["states"]]
    print("| what is read | " + " | ".join(f"MAE, {groups} groups" for groups in reached), end="")
    print(" | MSE, last | correlation | inside 80 % |\n" + "|---" * (len(reached) + 4) + "|")
    for name, row in table.items():
        last = row[reached[-1]]
        cells = [f"{row[groups]['mae']:.3f}" for groups in reached]
        rest = [f"{last['mse']:.3f}", str(last["correlation"]), f"{last['inside_80']:.2f}"]
        print("| " + " | ".join([name, *cells, *rest]) + " |")
    figures = {
        "probe": options.probe.name,
        "problems": len(probe["failed"]),
        "rollouts": int(probe["failed"].shape[1]),
        "left_out": options.left_out,
        "splits": options.splits,
        "layer": options.layer,
        "table": table,
    }
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
