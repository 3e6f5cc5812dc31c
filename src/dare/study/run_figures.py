"""The figures of one run: what it reached, what that took, and how it stands to its base run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dare.study.metrics import mean_of, memory_mb, reached, seconds, speed_up, until
from dare.study.runs import Run


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
    base_spent = (
        None if pair is None or base_hit is None else seconds(until(pair.metrics, base_hit))
    )
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
