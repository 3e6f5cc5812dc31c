"""Student's t intervals of accuracies and of their differences, with problems as a sample too."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]


def crossed_interval(values_SN: Array) -> dict[str, float | int | None]:
    """Mean and 95 % interval where both seeds [S] and problems [N] are samples.

    A two-way analysis of variance gives the variance of the mean, (MS of seeds + MS of problems -
    MS of the rest) / (S N), and Satterthwaite's rule its degrees of freedom. It is never taken for
    less than either part alone. With one seed only problems are a sample.
    """
    seeds, problems = values_SN.shape
    mean = float(values_SN.mean())
    of_seeds, of_problems = values_SN.mean(axis=1), values_SN.mean(axis=0)
    parts = {
        "problems": (of_problems.var(ddof=1) / problems if problems > 1 else 0.0, problems - 1),
        "seeds": (of_seeds.var(ddof=1) / seeds if seeds > 1 else 0.0, seeds - 1),
    }
    rest = values_SN - of_seeds[:, None] - of_problems[None] + mean
    free = (seeds - 1) * (problems - 1)
    shared = float((rest**2).sum() / free / values_SN.size) if free else 0.0
    (by_problem, problem_df), (by_seed, seed_df) = parts["problems"], parts["seeds"]
    both = by_problem + by_seed - shared
    if both > max(by_problem, by_seed):
        spread = sum(
            part**2 / df
            for part, df in ((by_problem, problem_df), (by_seed, seed_df), (shared, free))
            if df
        )
        variance, df = both, both**2 / spread if spread else math.inf
    else:
        variance, df = max(parts.values())
    return _interval(mean, float(variance), float(df), seeds)


def seed_interval(values_S: Array) -> dict[str, float | int | None]:
    """Student's t over seeds alone: the same problems would be asked again."""
    seeds = len(values_S)
    if seeds < 2:
        return {"mean": float(values_S.mean()), "low": None, "high": None, "seeds": seeds}
    return _interval(float(values_S.mean()), float(values_S.var(ddof=1) / seeds), seeds - 1, seeds)


def _interval(mean: float, variance: float, df: float, seeds: int) -> dict[str, float | int | None]:
    error = math.sqrt(max(variance, 0.0))
    half = float(stats.t.ppf(0.975, df)) * error if error else 0.0
    chance = float(2 * stats.t.sf(abs(mean) / error, df)) if error else float(mean == 0)
    made = {"mean": mean, "low": mean - half, "high": mean + half, "p": chance, "df": df}
    return {**{name: round(value, 5) for name, value in made.items()}, "seeds": seeds}
