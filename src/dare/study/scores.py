"""Accuracies of runs as tables, seeds x problems, and the intervals that such tables allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.evaluation.intervals import mean_rate
from dare.evaluation.paired import paired_difference
from dare.evaluation.student import NOTHING, Interval, student, two_way
from dare.study.runs import Run


def same_problems(runs: Sequence[Run]) -> bool:
    """Whether every evaluation of every run has the score of each problem, all of the same ones."""
    lines = [line for run in runs for line in run.eval]
    kinds = {(line.get("problem_set"), len(line.get("by_problem") or [])) for line in lines}
    return len(kinds) == 1 and all(next(iter(kinds)))


def scores_of(part: Mapping[str, Any], by_problem: bool) -> Array:
    """The score of each problem; its accuracy alone, as if of one problem, where it has no more.

    A problem that could not be scored gets the mean of the others, which leaves the mean as it is.
    """
    accuracy = part["accuracy"]
    if not by_problem:
        return np.array([accuracy], dtype=float)
    held = np.array(part["by_problem"], dtype=float)
    return np.where(np.isnan(held), accuracy, held)


def over(seeds: int, problems: int) -> str:
    """What an interval of such a table takes in."""
    words = [name for name, count in (("seeds", seeds), ("problems", problems)) if count > 1]
    return " and ".join(words)


def spread(value_SxP: Array) -> Interval:
    """Mean and interval of a rate over whatever there are several of: seeds, problems, or both.

    Its ends are cut to what a rate can be: two seeds alone reach far beyond.
    """
    mean, low, high = _spread(value_SxP)
    if low is None or high is None or value_SxP.min() < 0.0 or value_SxP.max() > 1.0:
        return Interval(mean, low, high)
    return Interval(mean, max(low, 0.0), min(high, 1.0))


def _spread(value_SxP: Array) -> Interval:
    seeds, problems = value_SxP.shape
    if not seeds or np.isnan(value_SxP).any():
        return NOTHING
    if problems == 1:
        return student(value_SxP[:, 0].tolist())
    return mean_rate(value_SxP[0]) if seeds == 1 else two_way(value_SxP)


def spread_of_gain(own_SxP: Array, base_SxP: Array) -> Interval:
    """The same of own - base, in pairs of the same seed and the same problem."""
    seeds, problems = own_SxP.shape
    if seeds == 1 and problems > 1:
        return paired_difference(own_SxP[0], base_SxP[0])
    return _spread(own_SxP - base_SxP)
