"""Runs compared: the figures of every run, and of every method over its seeds and problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput, suggest
from dare.evaluation.intervals import (
    NOTHING,
    Interval,
    mean_rate,
    paired_difference,
    student,
    two_way,
)
from dare.runs.methods import Run, by_method
from dare.study.metrics import (
    at_places,
    auc,
    mean_of,
    median_reached,
    memory_mb,
    reached,
    seconds,
    seconds_at,
    speed_up,
    until,
)
from dare.text import natural

GRID = 21
_SPEED_UPS = ("step_speed_up", "token_speed_up", "second_speed_up")
_TO_TARGET = ("steps_to_target", "tokens_to_target", "trained_to_target", "seconds_to_target")
_MEANS = (
    *("tokens_per_response", "varied_groups", "steps", "generated_tokens"),
    *("seconds", "memory_mb", "estimation_mae", "fresh_mae", "estimation_mse", "fresh_mse"),
)


@dataclass(frozen=True)
class _Scored:
    """A run, its accuracy by evaluation and problem, and where by tokens and, if it tells, by
    seconds of training it was evaluated."""

    run: Run
    value_ExP: Array
    places_E: dict[str, Array]

    def at(self, axis: str, wanted_N: Array) -> Array:
        """N x P."""
        return at_places(self.places_E[axis], self.value_ExP, wanted_N)


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
    tokens, seconds = (
        min(float(one.places_E.get(axis, [0.0])[-1]) for one in every)
        for axis in ("tokens", "seconds")
    )
    if tokens <= 0:
        raise InvalidInput("run", 0, "a run without generated tokens has no curve to compare")
    horizons = {"tokens": tokens, "seconds": seconds or None}
    bases = {one.run.seed: one for one in scored[base]}
    return {
        "base": base,
        "target": target,
        "problems": every[0].value_ExP.shape[1] if by_problem else None,
        "horizon_tokens": tokens,
        "horizon_seconds": seconds or None,
        "grid_tokens": [round(float(place)) for place in np.linspace(0.0, tokens, GRID)],
        "grid_seconds": [round(x, 3) for x in np.linspace(0.0, seconds, GRID)] if seconds else None,
        "methods": {
            name: _method(group, bases, target, horizons, by_problem)
            for name, group in scored.items()
        },
    }


def _scored(run: Run, by_problem: bool) -> _Scored:
    spent = seconds_at(run.metrics, run.eval)
    tokens = np.array([line["generated_tokens_total"] for line in run.eval], dtype=float)
    places = {"tokens": tokens} | ({} if spent is None else {"seconds": np.array(spent)})
    return _Scored(run, np.array([scores_of(line, by_problem) for line in run.eval]), places)


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
        itself = all(own is other for own, other in zip(paired, partners, strict=True))
        if paired and itself:  # the base differs from itself by nothing
            gain = [0.0, 0.0, 0.0]
        found[f"gain{suffix}"] = gain

    both("", lambda one: one.value_ExP[-1])
    end = horizons["tokens"] or 0.0
    area = [auc(one.places_E["tokens"], one.value_ExP, end) for one in group]
    found["auc"] = list(spread(np.array(area)))
    for one, row in zip(figures, area, strict=True):
        one["auc"] = float(row.mean())
    for axis, horizon in horizons.items():
        if horizon is None:
            found |= {f"accuracy_at_{axis}": list(NOTHING), f"gain_at_{axis}": list(NOTHING)}
            found[f"curve_{axis}"] = None
            continue
        there = np.array([horizon])
        both(f"at_{axis}", lambda one, axis=axis, there=there: one.at(axis, there)[0])
        curve_SxNxP = np.array([one.at(axis, np.linspace(0.0, horizon, GRID)) for one in group])
        found[f"curve_{axis}"] = [list(spread(curve_SxNxP[:, i])) for i in range(GRID)]
        for one, curve in zip(figures, curve_SxNxP, strict=True):
            one[f"accuracy_at_{axis}"] = float(curve[-1].mean())
            one[f"curve_{axis}"] = curve.mean(axis=1).round(6).tolist()
    found |= {key: _amount([one[key] for one in figures]) for key in _MEANS}
    # Held against the base run of the same seed, so only where there is one.
    with_base = [one for one in figures if one["paired"]]
    found |= {key: _amount([one[key] for one in with_base]) for key in _SPEED_UPS}
    found |= {key: _median(figures, key) for key in _TO_TARGET}
    return {**found, "by_level": _levels(group, by_problem), "runs": figures}


def _amount(values: Sequence[float | None]) -> list[float | None]:
    """Mean and interval of what is never below 0: tokens, seconds, and ratios of them, where 0
    stands for a target not reached."""
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
    for level in sorted({level for part in parts for level in part}, key=natural):
        held = [part.get(level, {}) for part in parts]
        known = all(one.get("accuracy") is not None for one in held)
        sizes = {len(one.get("by_problem") or []) for one in held}
        paired = by_problem and len(sizes) == 1 and sizes != {0}
        scores = [scores_of(one, paired) for one in held] if known else []
        found[level] = {
            "accuracy": list(spread(np.array(scores)) if known else NOTHING),
            "tokens": _amount([one.get("tokens") for one in held]),
        }
    return found


def run_figures(run: Run, bases: Mapping[int, Run], target: float | None) -> dict[str, Any]:
    """Everything that needs no other run but its base; what the run does not tell is None.

    `bases` are the runs of the base method by seed. Without a `target` the run is to reach the
    final accuracy of its base, of all of them on average where its seed has none.
    """
    last, pair = run.eval[-1], bases.get(run.seed)
    ends = {seed: float(other.eval[-1]["accuracy"]) for seed, other in bases.items()}
    end = ends.get(run.seed, float(np.mean(list(ends.values()))))
    goal = end if target is None else target
    hit = reached(run.eval, goal)
    base_hit = None if pair is None else reached(pair.eval, goal)

    def ratio(key: str) -> float | None:
        return speed_up(_at(base_hit, key), _at(hit, key))

    error = run.estimation or {}
    before = until(run.metrics, hit)
    trained = [line.get("tokens", {}).get("trained") for line in before]
    spent = None if hit is None else seconds(before)
    base_spent = seconds(until(pair.metrics, base_hit)) if pair and base_hit else None
    total = seconds(run.metrics)
    return {
        "seed": run.seed,
        "paired": pair is not None,
        "target": goal,
        "start_accuracy": run.eval[0]["accuracy"],
        "accuracy": last["accuracy"],
        "gain": last["accuracy"] - end,
        "steps_to_target": _at(hit, "step"),
        "tokens_to_target": _at(hit, "generated_tokens_total"),
        "trained_to_target": None if hit is None or None in trained else sum(trained),
        "seconds_to_target": spent,
        "step_speed_up": ratio("step"),
        "token_speed_up": ratio("generated_tokens_total"),
        "second_speed_up": None if total is None else speed_up(base_spent, spent),
        "tokens_per_response": last["tokens"],
        "by_level": {
            level: {"accuracy": part["accuracy"], "tokens": part["tokens"]}
            for level, part in last.get("by_level", {}).items()
        },
        "varied_groups": mean_of(run.metrics, "varied_groups"),
        "steps": run.metrics[-1]["step"] + 1,
        "generated_tokens": run.metrics[-1]["generated_tokens_total"],
        "seconds": total,
        "memory_mb": memory_mb(run.metrics),
        "estimation_mae": error.get("mae"),
        "fresh_mae": error.get("mae_fresh"),
        "estimation_mse": error.get("mse"),
        "fresh_mse": error.get("mse_fresh"),
    }


def _at(line: dict[str, Any] | None, key: str) -> float | None:
    return None if line is None else line[key]


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
    found = _spread(value_SxP)
    if found.low is None or found.high is None or value_SxP.min() < 0.0 or value_SxP.max() > 1.0:
        return found
    return Interval(found.mean, max(found.low, 0.0), min(found.high, 1.0))


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
