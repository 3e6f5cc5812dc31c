"""What thinning of small advantages saves and costs, on the groups that a run drew.

    python benchmarks/thinning.py --runs docs/results/methods_gpu_before [--out FILE.json]

For settings of `advantage.thin_below`: the share of the rollouts that a step trains on, and the
noise of its gradient, as the sum of squared advantages beside the sum without thinning. Rollouts of
a group are taken for independent and equally long. Steps 4 to 36 of each run. Ends with one JSON
line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from forgetting import read_groups

from dare.curriculum.advantages import thinned
from dare.curriculum.arrays import Array

STEPS, DRAWS = (4, 36), 50


def standard_scores(trials: Array, failures: Array) -> Array:
    """Advantages of GRPO for all rollouts of a step."""
    scores = []
    for count, failed in zip(trials.astype(int), failures.astype(int), strict=True):
        reward = np.repeat([0.0, 1.0], [failed, count - failed])
        scores.append((reward - reward.mean()) / max(float(reward.std()), 1e-9))
    return np.concatenate(scores)


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    outcomes = [
        outcome
        for path in sorted(options.runs.glob("*/selections.jsonl.gz"))
        for outcome in read_groups(path)[0]
        if STEPS[0] <= outcome.step < STEPS[1]
    ]
    rng, table = np.random.default_rng(0), {}
    for below in (0.0, 0.6, 0.8, 1.0, 1.2):
        kept, noise = [], []
        for outcome in outcomes:
            plain = standard_scores(outcome.trials_Q, outcome.failures_Q)
            for _ in range(DRAWS):
                thin = thinned(plain, below, rng)
                kept.append(np.mean(thin != 0.0))
                noise.append(np.sum(thin**2) / np.sum(plain**2))
        table[f"{below:g}"] = {
            "trained_on": round(float(np.mean(kept)), 3),
            "noise": round(float(np.mean(noise)), 3),
        }
        print(below, table[f"{below:g}"], flush=True)
    figures = {"runs": options.runs.name, "steps": STEPS, "table": table}
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
