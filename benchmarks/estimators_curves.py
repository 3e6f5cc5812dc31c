"""How well each estimator that needs no log-probs predicts the next pass of real training curves.

    python benchmarks/estimators_curves.py --curves FILE.jsonl[.gz] [--group 8] [--out FILE.json]

FILE has one object a line; `acc_by_epoch` is the success rate of one group of rollouts per pass
over the data, while a real policy was trained. Passes 10 to 43 of every prompt are predicted from
the passes before them; the error is the distance to the failure rate then observed, which is
itself the mean of one group: an observer who knew the true rate would still err.
Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
from rich.progress import track

from dare.curriculum.arrays import Array, offsets_of
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators import (
    Estimator,
    Outcome,
    PosteriorEstimator,
    PreviousEstimator,
    UniformEstimator,
)
from dare.curriculum.estimators.dare import LiveEstimator
from dare.curriculum.rollouts import RolloutBatch


def read_curves(path: Path) -> list[Array]:
    """Failure rates by pass of every prompt."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [1.0 - np.asarray(row["acc_by_epoch"], dtype=np.float64) for row in rows]


class Discounted(Estimator):
    """The reference of the method's description: a mean discounted by 0.8 per pass."""

    def __init__(self, count: int, decay: float) -> None:
        super().__init__(count)
        self._decay = decay
        self._sums = np.zeros((2, count))

    def observe(self, outcome: Outcome) -> None:
        """Discount what was, add what is."""
        self._sums[:, outcome.prompt_Q] *= self._decay
        self._sums[:, outcome.prompt_Q] += outcome.failures_Q, outcome.trials_Q
        failed, total = self._sums
        self._arrays["difficulty"] = np.divide(
            failed, total, out=np.full(self.count, 0.5), where=total > 0
        )


def outcomes_only(rows: Array, failures: Array, group: int) -> RolloutBatch:
    """Rollouts that carry a reward and nothing else, for the estimators that read the buffer."""
    wins = np.arange(group)[None, :] >= failures[:, None]
    count = wins.size
    return RolloutBatch(
        prompt_R=np.repeat(rows, group),
        tokens=np.zeros(count, np.int32),
        logprobs=np.zeros(count, np.float32),
        offsets=offsets_of(np.ones(count, np.int64)),
        total_logprob_R=np.zeros(count),
        reward_R=wins.reshape(-1).astype(np.float32),
        conditioning_R=np.zeros(count, np.uint8),
        finish_R=np.zeros(count, np.uint8),
    )


def predict(
    curves: list[Array], group: int, first: int, last: int, histories: tuple[int, ...] = (1, 2, 4)
) -> dict[str, dict[str, float]]:
    """MAE and MSE of each estimator over passes `first` to `last`, both included.

    `histories` are the groups that each kind of previous-fr looks back on.
    """
    count = len(curves)
    buffers = {
        f"previous-fr (K = {f'{size}G' if size > 1 else 'G, the last pass'})": RolloutBuffer(
            size * group, 10**9
        )
        for size in histories
    }
    estimators: dict[str, Estimator] = {
        "uniform (0.5)": UniformEstimator(count),
        **{name: PreviousEstimator(count, buffer) for name, buffer in buffers.items()},
        "posterior (MoPPS, discount 0.5)": PosteriorEstimator(count, 0.5),
        "posterior (discount 0.8)": PosteriorEstimator(count, 0.8),
        "discounted mean (0.8)": Discounted(count, 0.8),
        "dare": LiveEstimator(count),
    }
    mean = "dare (mean, for draws)"
    errors: dict[str, list[Array]] = {name: [] for name in (*estimators, mean)}
    lengths = np.array([len(curve) for curve in curves])
    rng = np.random.default_rng(0)
    for step in track(range(min(last + 1, int(lengths.max()))), description="passes"):
        rows = np.flatnonzero(lengths > step)
        rate = np.array([curves[row][step] for row in rows])
        if step >= first:
            for name, estimator in estimators.items():
                estimator.refresh(step, rng)
                errors[name].append(estimator.median()[rows] - rate)
            errors[mean].append(estimators["dare"].difficulty()[rows] - rate)
        failures = np.rint(rate * group)
        batch = outcomes_only(rows, failures, group)
        for buffer in buffers.values():
            buffer.add(batch, step)
        trials = np.full(len(rows), float(group))
        for estimator in estimators.values():
            estimator.observe(Outcome(step, rows, trials, failures))
    joined = {name: np.concatenate(parts) for name, parts in errors.items()}
    return {
        name: {"mae": round(float(np.abs(e).mean()), 4), "mse": round(float((e**2).mean()), 5)}
        for name, e in joined.items()
    }


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", type=Path, required=True)
    parser.add_argument("--group", type=int, default=8, help="rollouts per pass")
    parser.add_argument("--first", type=int, default=10)
    parser.add_argument("--last", type=int, default=43)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    curves = read_curves(options.curves)
    table = predict(curves, options.group, options.first, options.last)
    print("| estimator | MAE | MSE |\n|---|---|---|")
    for name, row in table.items():
        print(f"| {name} | {row['mae']:.4f} | {row['mse']:.5f} |")
    best = min(table, key=lambda name: table[name]["mae"])
    figures = {
        "curves": options.curves.name,
        "prompts": len(curves),
        "passes": [options.first, options.last],
        "group": options.group,
        "estimators": table,
        "best": best,
        "best_mae": table[best]["mae"],
        "dare_mae": table["dare"]["mae"],
    }
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
