"""Estimation error on a tabular policy whose true failure rates are known exactly.

    python benchmarks/estimators_tabular.py [--out docs/results/estimators_tabular.json]

Prompts are visited at random while the policy drifts by a dialled amount per step. At each step
every estimator is held against the enumerated failure rate of the policy as it is then.
`current-fr` is the mean of 8 fresh rollouts, the error that the paper takes for the floor.
Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from dare.config import EstimatorConfig
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators import (
    Estimator,
    Outcome,
    PaperEstimator,
    PosteriorEstimator,
    PreviousEstimator,
)
from dare.curriculum.estimators.dare import LiveEstimator, RescoredEstimator
from dare.evaluation.intervals import student
from dare.simulation.tabular import TabularPolicy

GROUP = 8
ORDER = ("dare", "dare-rescored", "snis (paper)", "previous-fr", "posterior", "current-fr")


def one_run(
    drift: float, history: int, seed: int, *, prompts: int, steps: int, visit: float, sampling: Any
) -> dict[str, float]:
    """Mean absolute error of each estimator over the second half of a run."""
    rng = np.random.default_rng([seed, 1])
    policy = TabularPolicy.random(prompts, seed=seed, **sampling)
    buffer = RolloutBuffer(history, 10**9)
    estimators: dict[str, Estimator] = {
        "dare": LiveEstimator(prompts),
        "dare-rescored": RescoredEstimator(prompts, buffer),
        "snis (paper)": PaperEstimator(prompts, buffer, EstimatorConfig()),
        "previous-fr": PreviousEstimator(prompts, buffer),
        "posterior": PosteriorEstimator(prompts, 0.5),
    }
    # What a perfect cold start would not give either: the population's mean failure rate.
    mean = np.full(prompts, float(policy.true_difficulty().mean()))
    for estimator in estimators.values():
        estimator.set_prior(mean)
    errors: dict[str, list[float]] = {name: [] for name in (*estimators, "current-fr")}
    for step in range(steps):
        rows = np.flatnonzero(rng.random(prompts) < visit) if step else np.arange(prompts)
        batch = policy.sample(np.repeat(rows, GROUP), rng)
        buffer.add(batch, step)
        failures = (1.0 - batch.reward_R).reshape(-1, GROUP).sum(axis=1)
        outcome = Outcome(step, rows, np.full(len(rows), float(GROUP)), failures)
        for estimator in estimators.values():
            estimator.observe(outcome)
        policy = policy.drifted(drift, rng)
        everything = buffer.batch(np.arange(len(buffer)))
        buffer.rescore(buffer["uid"], policy.score(everything), step + 1)
        for estimator in estimators.values():
            estimator.refresh(step + 1, rng)
        if step >= steps // 2:
            truth = policy.true_difficulty()
            fresh = policy.sample(np.repeat(np.arange(prompts), GROUP), rng).reward_R
            rates = {name: e.median() for name, e in estimators.items()}
            rates["current-fr"] = 1.0 - fresh.reshape(-1, GROUP).mean(axis=1)
            for name, rate in rates.items():
                errors[name].append(float(np.abs(rate - truth).mean()))
    return {name: float(np.mean(values)) for name, values in errors.items()}


def interval(values: list[float]) -> dict[str, float | None]:
    """Mean and 95 % half-width over seeds (Student's t); of one seed the mean alone."""
    mean, low, _ = student(values)
    assert mean is not None, "every run has an error"
    half = None if low is None else round(mean - low, 5)
    return {"mae": round(mean, 5), "ci95": half}


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--visit", type=float, default=0.25, help="chance of a visit per step")
    options = parser.parse_args()
    settings = {
        "T = 1": {"temperature": 1.0, "top_p": 1.0},
        "T = 0.6, top-p 0.95": {"temperature": 0.6, "top_p": 0.95},
    }
    drifts, histories = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4), (8, 16, 32)
    cells = [(name, k, d) for name in settings for k in histories for d in drifts]
    rows = []
    for name, history, drift in track(cells, description="tabular policy"):
        runs = [
            one_run(
                drift,
                history,
                seed,
                prompts=options.prompts,
                steps=options.steps,
                visit=options.visit,
                sampling=settings[name],
            )
            for seed in range(options.seeds)
        ]
        mae = {key: interval([run[key] for run in runs]) for key in runs[0]}
        rows.append({"sampling": name, "rollouts_per_prompt": history, "drift": drift, "mae": mae})
    names = [name for name in ORDER if name in rows[0]["mae"]]  # type: ignore[operator]
    print("| sampling | K | drift | " + " | ".join(names) + " |")
    print("|---" * (3 + len(names)) + "|")
    for row in rows:
        cells_text = [f"{row['mae'][name]['mae']:.3f}" for name in names]  # type: ignore[index]
        lead = [str(row["sampling"]), str(row["rollouts_per_prompt"]), str(row["drift"])]
        print("| " + " | ".join([*lead, *cells_text]) + " |")
    figures = {
        "assumptions": (
            "independent tabular policies per prompt, 3 tokens, up to 4 positions; logits take "
            "Gaussian steps of the given standard deviation; every rollout is rescored each step"
        ),
        "seeds": options.seeds,
        "prompts": options.prompts,
        "steps": options.steps,
        "visit": options.visit,
        "group": GROUP,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    worst = max(
        row["mae"]["dare"]["mae"] / row["mae"]["current-fr"]["mae"]  # type: ignore[index]
        for row in rows
        if row["rollouts_per_prompt"] != 8
    )
    print(json.dumps({"worst_dare_over_current_fr": round(worst, 4), "cells": len(rows)}))


if __name__ == "__main__":
    main()
