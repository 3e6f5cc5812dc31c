"""How well solutions that the policy reads tell the failure rate of prompts nobody has tried.

    python benchmarks/foresight.py [--prompts 1024] [--rollouts 32] [--repetitions 20] [--out FILE]

The built-in policy, untrained. Truth is the failure rate of `--rollouts` rollouts a prompt; the map
is learnt from groups of 8 others, of 64 or 256 prompts at random, or of 256 drawn near a difficulty
of 0.5 as a run draws them, then with and without counting groups for the prompts they stand for.
Errors are of the prompts that no group was of. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.likelihood_map import design, features, fit_logistic, fit_map
from dare.policy.generate import GenerationRequest
from dare.training.recipe import build, change, load_recipe

GROUP = 8
KAPPA = 16.0


def measure(prompts: int, rollouts: int) -> tuple[Array, Array, Array]:
    """Features, failures in a group of eight, and the true failure rate of every prompt."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = change(load_recipe("quickstart"), ["--output-dir", folder])
        recipe["data"] = {"tasks": {"count": prompts, "seed": 0, "split": "train"}}
        trainer = build(recipe)
    total = GROUP + rollouts
    rows = np.repeat(np.arange(prompts), total)
    request = GenerationRequest(
        prompts=[trainer.store.tokens(row) for row in range(prompts)],
        prompt_R=rows,
        max_tokens_R=np.full(len(rows), trainer.settings.max_tokens, dtype=np.int64),
        noise_R=np.arange(len(rows)),
        seed=0,
        step=0,
        purpose="foresight",
    )
    generated = trainer.policy.generate(request, trainer.args.sampling)
    reward = trainer.collector.reward(rows, generated.tokens)
    failure = 1.0 - np.array(reward, dtype=float).reshape(prompts, total)
    longest = trainer.settings.max_tokens
    statistics = trainer.collector.read_solutions(np.arange(prompts), longest).values
    nothing = np.zeros(prompts)  # nothing has been read before or interpolated
    found = features(np.asarray(statistics), nothing, nothing + 0.5)
    return found, failure[:, :GROUP].sum(1), failure[:, GROUP:].mean(1)


def repeat(
    found: Array, failures: Array, truth: Array, count: int, times: int, drawn: bool
) -> dict[str, Any]:
    """Mean errors over repetitions, of the first fit and of the second."""
    odds = np.clip(truth, 0.03, 0.97)
    density = (odds * (1 - odds)) ** (KAPPA / 2) if drawn else np.ones(len(truth))
    density = 0.8 * density / density.sum() + 0.2 / len(truth)
    lines = []
    for seed in range(times):
        rng = np.random.default_rng(seed)
        rows = rng.choice(len(truth), size=count, replace=False, p=density / density.sum())
        others = np.setdiff1d(np.arange(len(truth)), rows)
        trials = np.full(count, float(GROUP))
        second = fit_map(found[rows], failures[rows], trials, found)
        inputs = design((found[rows] - second.centre) / second.scale)
        first = second._replace(weight=fit_logistic(inputs, failures[rows], trials))
        line = {}
        for name, one in (("first_fit", first), ("both_fits", second)):
            rate = one.predict(found[others])
            nearest = others[np.argsort(np.abs(rate - 0.5))[:64]]
            line[name] = float(np.abs(rate - truth[others]).mean())
            line[f"{name}_medium"] = float(np.mean(np.abs(truth[nearest] - 0.5) <= 0.3))
        lines.append(line)
    return {key: round(float(np.mean([line[key] for line in lines])), 4) for key in lines[0]}


def main() -> None:
    """Measure once, then learn from many samples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=1024)
    parser.add_argument("--rollouts", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.prompts < 512:
        parser.error(f"--prompts {options.prompts}: use at least 512, half are learnt from")
    found, failures, truth = measure(options.prompts, options.rollouts)
    times = options.repetitions
    figures = {
        "prompts": options.prompts,
        "rollouts": options.rollouts,
        "repetitions": times,
        "mean_for_all": round(float(np.abs(truth - truth.mean()).mean()), 4),
        "fresh_group": round(float(np.abs(failures / GROUP - truth).mean()), 4),
        "medium_in_the_data": round(float(np.mean(np.abs(truth - 0.5) <= 0.3)), 4),
        "random_64": repeat(found, failures, truth, 64, times, drawn=False),
        "random_256": repeat(found, failures, truth, 256, times, drawn=False),
        "drawn_256": repeat(found, failures, truth, 256, times, drawn=True),
    }
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
