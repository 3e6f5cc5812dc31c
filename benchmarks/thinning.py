"""What thinning of small advantages saves and costs, on the groups that a run drew.

    python benchmarks/thinning.py --runs docs/results/methods_gpu_before \
        --timed docs/results/methods_gpu/mixture [--out FILE.json]

For settings of `advantage.thin_below`: the share of the rollouts that a step trains on, and the
variance of its gradient, as the sum of squared advantages beside the sum without thinning. Rollouts
of a group are taken for independent and equally long. Steps 4 to 36 of each run.

`--timed` has runs of `grpo` and `dare` with their seconds. Mixed groups over that variance say how
much a run can learn where gradients are mostly noise; they are given for a second and for a million
generated tokens. What training took is scaled by the share that is trained on, the rest of a step
is left as it was, and so are the groups: what another setting would have drawn later is not known.
Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

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


def means(folder: Path) -> dict[str, float]:
    """Of an arm's runs: mixed groups, seconds, those of them in training, tokens; the setting."""
    runs = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*/summary.json"))]
    return {
        "groups": float(np.mean([one["varied_groups"] for one in runs])),
        "seconds": float(np.mean([one["seconds"] for one in runs])),
        "train": float(np.mean([one["phases"]["train"] for one in runs])),
        "tokens": float(np.mean([one["tokens"] for one in runs])),
        "thin_below": runs[0]["curriculum"]["advantage"]["thin_below"],
    }


def yields(run: dict[str, float], variance: float = 1.0, training: float = 1.0) -> dict[str, float]:
    """Mixed groups over the variance, a second and a million tokens, where training takes so many
    times as long as it did."""
    seconds = run["seconds"] + (training - 1.0) * run["train"]
    worth = run["groups"] / variance
    return {
        "per_second": round(worth / seconds, 2),
        "per_m_tokens": round(worth / run["tokens"] * 1e6, 1),
    }


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--timed", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    outcomes = [
        outcome
        for path in sorted(options.runs.glob("*/selections.jsonl.gz"))
        for outcome in read_groups(path)[0]
        if STEPS[0] <= outcome.step < STEPS[1]
    ]
    rng = np.random.default_rng(0)
    table: dict[str, dict[str, Any]] = {}
    for below in (0.0, 0.6, 0.8, 1.0, 1.2):
        kept, variance = [], []
        for outcome in outcomes:
            plain = standard_scores(outcome.trials_Q, outcome.failures_Q)
            for _ in range(DRAWS):
                thin = thinned(plain, below, rng)
                kept.append(np.mean(thin != 0.0))
                variance.append(np.sum(thin**2) / np.sum(plain**2))
        table[f"{below:g}"] = {
            "trained_on": round(float(np.mean(kept)), 3),
            "variance": round(float(np.mean(variance)), 3),
        }
    grpo, dare = means(options.timed / "grpo"), means(options.timed / "dare")
    usual = table[f"{dare['thin_below']:g}"]["trained_on"]
    for name, one in table.items():
        one.update(yields(dare, one["variance"], one["trained_on"] / usual))
        print(name, one, flush=True)
    figures = {
        "runs": options.runs.name,
        "steps": STEPS,
        "table": table,
        "timed": {"grpo": grpo, "dare": dare},
        "grpo": yields(grpo),
    }
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
