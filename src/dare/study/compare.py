"""Runs compared: the figures of every run, and of every method over its seeds and problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput, suggest
from dare.evaluation.student import NOTHING, student
from dare.study.metrics import at_places, auc, median_reached, seconds_at
from dare.study.run_figures import run_figures
from dare.study.runs import Run, by_method
from dare.study.scores import over, same_problems, scores_of, spread, spread_of_gain

GRID = 21
_SPEED_UPS = ("step_speed_up", "token_speed_up", "second_speed_up")
_TO_TARGET = ("steps_to_target", "tokens_to_target", "trained_to_target", "seconds_to_target")
_MEANS = (
    "tokens_per_response",
    "varied_groups",
    "steps",
    "generated_tokens",
    "seconds",
    "memory_mb",
    "estimation_mae",
    "fresh_mae",
    "estimation_mse",
    "fresh_mse",
)


@dataclass(frozen=True)
class _Scored:
    """A run, its accuracy by evaluation and problem, and where on both axes it was evaluated."""

    run: Run
    value_ExP: Array
    tokens_E: Array
    seconds_E: Array | None

    def at(self, axis: str, wanted_N: Array) -> Array:
        """N x P."""
        place = self.tokens_E if axis == "tokens" else self.seconds_E
        assert place is not None, "only asked where all runs have seconds"
        return at_places(place, self.value_ExP, wanted_N)


def compare_runs(
    runs: Sequence[Run], base: str | None = None, target: float | None = None
) -> dict[str, Any]:
    """Everything that the tables and figures show, as plain values.

    `base` is the method that speed-ups and gains refer to: `grpo` where there is one, otherwise
    the first, if not named. Without a
    `target` accuracy, every run is held against the final accuracy of the base run of its seed
    (of all base runs, on average, where that seed is missing).

    All runs are read at the tokens that every one of them has generated, and at the seconds of
    training that every one of them has had (None where a run does not tell).
    """
    groups = by_method(runs)
    if base is None:
        base = "grpo" if "grpo" in groups else next(iter(groups))
    if base not in groups:
        raise InvalidInput("--base", base, f"is no method of these runs; {suggest(base, groups)}")
    groups = {base: groups[base], **groups}  # shown first
    by_problem = same_problems(runs)
    scored = {name: [_scored(run, by_problem) for run in group] for name, group in groups.items()}
    every = [one for group in scored.values() for one in group]
    tokens = min(float(one.tokens_E[-1]) for one in every)
    if tokens <= 0:
        raise InvalidInput("run", 0, "a run without generated tokens has no curve to compare")
    ends = [0.0 if one.seconds_E is None else float(one.seconds_E[-1]) for one in every]
    horizons = {"tokens": tokens, "seconds": min(ends) or None}
    bases = {one.run.seed: one for one in scored[base]}
    return {
        "base": base,
        "target": target,
        "problems": every[0].value_ExP.shape[1] if by_problem else None,
        "horizon_tokens": tokens,
        "horizon_seconds": horizons["seconds"],
        "grid_tokens": [round(float(place)) for place in np.linspace(0.0, tokens, GRID)],
        "grid_seconds": _grid(horizons["seconds"]),
        "methods": {
            name: _method(group, bases, target, horizons, by_problem)
            for name, group in scored.items()
        },
    }


def _scored(run: Run, by_problem: bool) -> _Scored:
    spent = seconds_at(run.metrics, run.eval)
    return _Scored(
        run,
        np.array([scores_of(line, by_problem) for line in run.eval]),
        np.array([line["generated_tokens_total"] for line in run.eval], dtype=float),
        None if spent is None else np.array(spent),
    )


def _grid(horizon: float | None) -> list[float] | None:
    return None if horizon is None else [round(x, 3) for x in np.linspace(0.0, horizon, GRID)]


def _method(
    group: Sequence[_Scored],
    bases: dict[int, _Scored],
    target: float | None,
    horizons: dict[str, float | None],
    by_problem: bool,
) -> dict[str, Any]:
    """One method: [mean, low, high] of everything, and its curves.

    Accuracies and gains vary with the seed and with the problems, everything else with the seed.
    """
    base_runs = {seed: one.run for seed, one in bases.items()}
    figures = [run_figures(one.run, base_runs, target) for one in group]
    paired = [one for one in group if one.run.seed in bases]
    partners = [bases[one.run.seed] for one in paired]
    found: dict[str, Any] = {
        "seeds": [one["seed"] for one in figures],
        "over": over(len(group), group[0].value_ExP.shape[1]),
        "reached": sum(one["steps_to_target"] is not None for one in figures),
    }

    def both(name: str, values: Any) -> None:
        """Accuracy over all seeds, gain over those with a base run of the same seed."""
        suffix = name and f"_{name}"
        found[f"accuracy{suffix}"] = list(spread(np.array([values(one) for one in group])))
        pairs = [np.array([values(one) for one in side]) for side in (paired, partners)]
        gain = list(spread_of_gain(*pairs) if paired else NOTHING)
        found[f"gain{suffix}"] = gain

    both("", lambda one: one.value_ExP[-1])
    area = [auc(one.tokens_E, one.value_ExP, horizons["tokens"] or 0.0) for one in group]
    found["auc"] = list(spread(np.array(area)))
    for one, row in zip(figures, area, strict=True):
        one["auc"] = float(row.mean())
    for axis, horizon in horizons.items():
        if horizon is None:
            found |= {f"accuracy_at_{axis}": list(NOTHING), f"gain_at_{axis}": list(NOTHING)}
            found[f"curve_{axis}"] = None
            continue
        end = np.array([horizon])
        both(f"at_{axis}", lambda one, axis=axis, end=end: one.at(axis, end)[0])
        curve_SxNxP = np.array([one.at(axis, np.linspace(0.0, horizon, GRID)) for one in group])
        found[f"curve_{axis}"] = [list(spread(curve_SxNxP[:, i])) for i in range(GRID)]
        for one, curve in zip(figures, curve_SxNxP, strict=True):
            one[f"accuracy_at_{axis}"] = float(curve[-1].mean())
            one[f"curve_{axis}"] = curve.mean(axis=1).round(6).tolist()
    found |= {key: list(student([one[key] for one in figures])) for key in _MEANS}
    # Held against the base run of the same seed, so only where there is one.
    with_base = [one for one in figures if one["paired"]]
    found |= {key: _ratio([one[key] for one in with_base]) for key in _SPEED_UPS}
    found |= {key: _median(figures, key) for key in _TO_TARGET}
    return {**found, "by_level": _levels(group, by_problem), "runs": figures}


def _ratio(values: Sequence[float | None]) -> list[float | None]:
    """Mean and interval of ratios: never below 0, which stands for a target not reached."""
    mean, low, high = student(values)
    return [mean, None if low is None else max(0.0, low), high]


def _median(figures: Sequence[dict[str, Any]], key: str) -> list[float | None]:
    """Median of what it took; undefined where a run got there and does not tell what it took."""
    there = [one for one in figures if one["steps_to_target"] is not None]
    told = all(one[key] is not None for one in there)
    return list(median_reached([one[key] for one in figures]) if told else NOTHING)


def _levels(group: Sequence[_Scored], by_problem: bool) -> dict[str, Any]:
    """Accuracy and tokens of each level at the end; undefined where a run has none of it."""
    parts = [one.run.eval[-1].get("by_level", {}) for one in group]
    found = {}
    for level in sorted({level for part in parts for level in part}, key=_level):
        held = [part.get(level, {}) for part in parts]
        known = all(one.get("accuracy") is not None for one in held)
        sizes = {len(one.get("by_problem") or []) for one in held}
        paired = by_problem and len(sizes) == 1 and sizes != {0}
        scores = [scores_of(one, paired) for one in held] if known else []
        found[level] = {
            "accuracy": list(spread(np.array(scores)) if known else NOTHING),
            "tokens": list(student([one.get("tokens") for one in held])),
        }
    return found


def _level(name: str) -> tuple[int, str]:
    """Levels in order of number, words after them."""
    return (int(name), "") if name.isdigit() else (1 << 30, name)
