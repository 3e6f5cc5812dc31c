"""Runs compared: the figures of every run, and of every method over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dare.errors import InvalidInput, suggest
from dare.study.metrics import (
    auc,
    bootstrap,
    bootstrap_median,
    memory_mb,
    reached,
    seconds,
    speed_up,
    until,
)
from dare.study.runs import Run, by_method

GRID = 21
_PAIRED = ("gain", "step_speed_up", "token_speed_up")
_TO_TARGET = ("steps_to_target", "tokens_to_target", "trained_to_target", "seconds_to_target")
_MEANS = (
    "accuracy",
    "auc",
    "tokens_per_response",
    "varied_groups",
    "steps",
    "generated_tokens",
    "seconds",
    "memory_mb",
    "estimation_mae",
    "fresh_mae",
)


def compare_runs(
    runs: Sequence[Run], base: str | None = None, target: float | None = None
) -> dict[str, Any]:
    """Everything that the tables and figures show, as plain values.

    `base` is the method that speed-ups and gains refer to, the first if not named. Without a
    `target` accuracy, every run is held against the final accuracy of the base run of its seed
    (of all base runs, on average, where that seed is missing).
    """
    groups = by_method(runs)
    base = next(iter(groups)) if base is None else base
    if base not in groups:
        raise InvalidInput("--base", base, f"is no method of these runs; {suggest(base, groups)}")
    # All runs are integrated over the tokens that every one of them has generated.
    horizon = min(float(run.eval[-1]["generated_tokens_total"]) for run in runs)
    if horizon <= 0:
        raise InvalidInput("run", 0, "a run without generated tokens has no curve to compare")
    grid = np.linspace(0.0, horizon, GRID)
    bases = {run.seed: run for run in groups[base]}
    return {
        "base": base,
        "target": target,
        "horizon_tokens": horizon,
        "grid_tokens": [round(float(place)) for place in grid],
        "methods": {
            name: _method([_run(run, bases, target, horizon) for run in group], group, grid)
            for name, group in groups.items()
        },
    }


def _run(run: Run, bases: dict[int, Run], target: float | None, horizon: float) -> dict[str, Any]:
    """The figures of one run."""
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
    return {
        "seed": run.seed,
        "paired": pair is not None,
        "target": goal,
        "start_accuracy": run.eval[0]["accuracy"],
        "accuracy": last["accuracy"],
        "gain": last["accuracy"] - end,
        "auc": auc(run.eval, horizon),
        "steps_to_target": _at(hit, "step"),
        "tokens_to_target": _at(hit, "generated_tokens_total"),
        "trained_to_target": None if hit is None or None in trained else sum(trained),
        "seconds_to_target": None if hit is None else seconds(before),
        "step_speed_up": ratio("step"),
        "token_speed_up": ratio("generated_tokens_total"),
        "tokens_per_response": last["tokens"],
        "by_level": {
            level: {"accuracy": part["accuracy"], "tokens": part["tokens"]}
            for level, part in last.get("by_level", {}).items()
        },
        "varied_groups": float(np.mean([line.get("varied_groups", 0.0) for line in run.metrics])),
        "steps": run.metrics[-1]["step"] + 1,
        "generated_tokens": run.metrics[-1]["generated_tokens_total"],
        "seconds": seconds(run.metrics),
        "memory_mb": memory_mb(run.metrics),
        "estimation_mae": error.get("mae"),
        "fresh_mae": error.get("mae_fresh"),
    }


def _method(figures: list[dict[str, Any]], group: Sequence[Run], grid: Any) -> dict[str, Any]:
    """One method over its seeds: [mean, low, high] of everything, and its curve."""
    curves = [
        np.interp(
            grid,
            [line["generated_tokens_total"] for line in run.eval],
            [line["accuracy"] for line in run.eval],
        )
        for run in group
    ]
    levels = sorted({level for one in figures for level in one["by_level"]}, key=_level)
    return {
        "seeds": [one["seed"] for one in figures],
        "reached": sum(one["steps_to_target"] is not None for one in figures),
        **{key: list(bootstrap([one[key] for one in figures])) for key in _MEANS},
        # Held against the base run of the same seed, so only where there is one.
        **{key: list(bootstrap([one[key] for one in figures if one["paired"]])) for key in _PAIRED},
        **{key: list(bootstrap_median([one[key] for one in figures])) for key in _TO_TARGET},
        "by_level": {
            level: {
                key: list(bootstrap([one["by_level"].get(level, {}).get(key) for one in figures]))
                for key in ("accuracy", "tokens")
            }
            for level in levels
        },
        "curve": [list(bootstrap([float(c[i]) for c in curves])) for i in range(len(grid))],
        "runs": figures,
    }


def _at(line: dict[str, Any] | None, key: str) -> float | None:
    return None if line is None else line[key]


def _level(name: str) -> tuple[int, str]:
    """Levels in order of number, words after them."""
    return (int(name), "") if name.isdigit() else (1 << 30, name)
