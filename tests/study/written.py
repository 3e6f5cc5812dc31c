"""Run folders as a trainer leaves them, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_run(
    folder: Path,
    accuracies: list[float],
    *,
    name: str | None = None,
    preset: str = "grpo",
    seed: int = 0,
    tokens: int = 100,
    every: int = 5,
    done: bool = True,
    settings: dict[str, Any] | None = None,
    seconds: float | None = 1.5,
    problems: list[float] | None = None,
    problem_set: str = "these",
) -> Path:
    """Evaluations `every` steps and `tokens` tokens apart, levels 1 and 10 around the mean.

    `seconds` is what a step takes, `problems` the scores of each problem at every evaluation.
    """
    folder.mkdir(parents=True)
    if name is not None:
        job = {"name": name, "preset": preset, "seed": seed}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        if done:
            (folder / "done.json").write_text("{}", encoding="utf-8")
    config = {"training": {"preset": preset, "seed": seed}, "curriculum": settings or {}}
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    evaluations = [
        {
            "step": place * every,
            "generated_tokens_total": place * tokens,
            "accuracy": value,
            "tokens": 10.0 + place,
            "by_level": {
                "10": {"accuracy": value - 0.1, "tokens": 20.0},
                "1": {"accuracy": value + 0.1, "tokens": 5.0},
            },
        }
        for place, value in enumerate(accuracies)
    ]
    if problems is not None:
        for line in evaluations:
            line |= {"by_problem": problems, "problem_set": problem_set}
    steps = (len(accuracies) - 1) * every
    metrics = [
        {
            "step": step,
            "generated_tokens_total": (step + 1) * tokens // every,
            **({} if seconds is None else {"seconds": {"generate": seconds - 0.5, "train": 0.5}}),
            "tokens": {"generated": tokens // every, "trained": 7},
            "memory_mb": 100.0 + step,
            "varied_groups": 0.5,
        }
        for step in range(steps)
    ]
    for file, lines in (("eval.jsonl", evaluations), ("metrics.jsonl", metrics)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def write_study(folder: Path) -> Path:
    """GRPO and a method twice as fast, two seeds each, and a run that is not finished."""
    for seed, shift in ((0, 0.0), (1, 0.1)):
        base = [0.2, 0.3, 0.4, 0.5, 0.6]
        fast = [0.2, 0.4, 0.6, 0.7, 0.8]
        for name, values in (("grpo", base), ("fast", fast)):
            shifted = [value + shift for value in values]
            write_run(folder / name / f"seed-{seed}", shifted, name=name, seed=seed)
    write_run(folder / "slow" / "seed-0", [0.2, 0.2], name="slow", done=False)
    order = {"methods": ["grpo", "fast", "slow"]}
    (folder / "study.json").write_text(json.dumps(order), encoding="utf-8")
    return folder
