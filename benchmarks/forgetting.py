"""How well the estimate foretells prompts that return, by how fast it forgets.

    python benchmarks/forgetting.py --runs docs/results/methods_gpu_before [--out FILE.json]

Every folder of --runs has the `selections.jsonl.gz` of a run: which prompts each step drew, and how
many of their rollouts failed. The estimator sees the groups of a run in their order, without states
and without solutions, and is asked about each prompt before its group. The error counts prompts
that had been tried before. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.estimators.dare import LiveEstimator
from dare.curriculum.rollouts import Outcome

STAGES = ((4, 20), (20, 35), (35, 45), (45, 60))
"""Steps from and up to; the first ones return to nothing."""


class Fixed(LiveEstimator):
    """Forgets at one speed."""

    def _judge(self, outcome: Outcome) -> None:
        pass


def read_groups(path: Path) -> tuple[list[Outcome], list[Array], int]:
    """What came out step by step, what the run itself had said, and how many prompts there are."""
    rows: dict[str, int] = {}
    outcomes, said = [], []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            prompt = np.array([rows.setdefault(key, len(rows)) for key in line["prompt"]])
            trials = np.array(line["group_size"], float)
            failures = np.round(trials * np.array(line["failure_rate"]))
            outcomes.append(Outcome(line["step"], prompt, trials, failures))
            said.append(np.array(line["difficulty"]))
    return outcomes, said, len(rows)


def errors(path: Path, fade: float | None) -> tuple[Array, Array]:
    """A row a returning prompt: the step, |estimate - what came out|, the same of the run's own
    estimate, and whether the group was mixed; then the fade after each step."""
    outcomes, said, count = read_groups(path)
    estimator = LiveEstimator(count) if fade is None else Fixed(count)
    if fade is not None:
        estimator._scalars["fade"] = fade
    tried, rows, fades = np.zeros(count, bool), [], []
    for outcome, then in zip(outcomes, said, strict=True):
        again = tried[outcome.prompt_Q]
        rate = (outcome.failures_Q / outcome.trials_Q)[again]
        missed = np.abs(estimator.median()[outcome.prompt_Q[again]] - rate)
        mixed = (rate > 0) & (rate < 1)
        step = np.full(len(rate), outcome.step)
        rows.append(np.column_stack([step, missed, np.abs(then[again] - rate), mixed]))
        tried[outcome.prompt_Q] = True
        estimator.observe(outcome)
        fades.append(estimator.metrics()["evidence_fade"])
    return np.concatenate(rows), np.array(fades)


def by_stage(rows: Array, column: int) -> list[float]:
    """Mean of a column in each stage."""
    step = rows[:, 0]
    return [
        round(float(rows[(step >= low) & (step < high), column].mean()), 4) for low, high in STAGES
    ]


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    paths = sorted(options.runs.glob("*/selections.jsonl.gz"))
    table: dict[str, Any] = {}
    for fade in (1e-4, 1e-3, 1e-2, 1e-1, None):
        found, fades = zip(*(errors(path, fade) for path in paths), strict=True)
        rows = np.concatenate(found)
        name = "own choice" if fade is None else f"fixed at {fade:g}"
        last = float(np.mean([one[-1] for one in fades]))
        table[name] = {"mae": by_stage(rows, 1), "fade": round(last, 5)}
        print(name, table[name], flush=True)
    figures = {
        "runs": [path.parent.name for path in paths],
        "steps": STAGES,
        "in_the_run": {"mae": by_stage(rows, 2), "mixed": by_stage(rows, 3)},
        "table": table,
    }
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
