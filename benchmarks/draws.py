"""How many groups of a draw are mixed: settings of `selection: value` on a probe of a model.

    python benchmarks/draws.py --probe FOLDER [--sharpness 4,8,16] [--rest 2,4,8] [--out FILE.json]

FOLDER is what `probe_gpu.py` leaves. The whole curriculum draws from its problems. A rollout fails
with a rate drawn from what the probe found. The policy moves as it did in runs of a language model:
a problem that was trained on becomes easier, unevenly, all others a little. What a setting does to
the draw is seen, what it does to learning is not. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from forecast import read_probe
from rich.progress import track

from dare.config import CurriculumConfig
from dare.curriculum import Curriculum, PromptTable, Services
from dare.curriculum.arrays import Array
from dare.curriculum.estimators import Measured
from dare.curriculum.rollouts import RolloutBatch

GAIN, UNEVEN = 0.25, 0.3  # logits that a mixed group makes its problem easier, and their deviation
EASIER, WANDER = 0.01, 0.03  # the same for every problem at every step


def simulated(
    probe: dict[str, Array], preset: str, changes: dict[str, Any], steps: int, seed: int
) -> dict[str, float]:
    """What one run draws: means over all steps and over the last half of them."""
    count, rollouts = probe["failed"].shape
    rng = np.random.default_rng([seed, 7])
    failed = probe["failed"].sum(axis=1)
    rate = np.clip(rng.beta(failed + 0.15, rollouts - failed + 0.15), 1e-4, 1 - 1e-4)
    logit = np.log(rate / (1 - rate))
    config = CurriculumConfig.preset(preset, seed=seed, rollout_budget=256, **changes)
    services = Services(
        states=lambda rows: Measured(probe["states"][rows], len(rows)), lengths=probe["lengths"]
    )
    curriculum = Curriculum(PromptTable.from_keys(np.arange(count)), config, services)
    lines = []
    while curriculum.step < steps:
        plan = curriculum.plan()
        prompts = np.repeat(plan.prompt_P, plan.plain_P)
        length = np.maximum(probe["tokens"][prompts].astype(int), 1)
        rate = 1 / (1 + np.exp(-logit[prompts]))
        reward = (rng.random(len(prompts)) >= rate).astype(float)
        seen = curriculum.visits_P[plan.prompt_P] > 0
        tokens = [np.zeros(one, np.int32) for one in length.tolist()]
        fresh = RolloutBatch.from_lists(prompts, tokens, None, reward.tolist())
        batch = curriculum.observe(fresh)
        curriculum.refresh(None, 1 << 40)
        if batch is not None:
            mixed = float(batch.varied_N.sum())
            lines.append((mixed / len(batch.varied_N), mixed, float(length.sum()), seen.mean()))
            right, tried = (
                np.bincount(prompts, reward, count),
                np.bincount(prompts, minlength=count),
            )
            learnt = np.flatnonzero((right > 0) & (right < tried))
            logit[learnt] += UNEVEN * rng.standard_normal(len(learnt)) - GAIN
        logit += WANDER * rng.standard_normal(count) - EASIER
    share, groups, tokens, again = np.array(lines).T
    return {
        "mixed": float(share.mean()),
        "mixed_late": float(share[len(share) // 2 :].mean()),
        "tokens_a_mixed_group": float(tokens.sum() / groups.sum()),
        "tried_before": float(again.mean()),
        "problems": int((curriculum.visits_P > 0).sum()),
        "most_visits": int(curriculum.visits_P.max()),
    }


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--probe", type=Path, required=True)
    parser.add_argument("--layer", type=int, default=20)
    parser.add_argument("--sharpness", default="4,8,16,32", help="with commas between them")
    parser.add_argument("--rest", default="2,4,8", help="with commas between them")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    probe = read_probe(options.probe, options.layer)
    arms: dict[str, tuple[str, dict[str, Any]]] = {"uniform": ("grpo", {})}
    for sharp in options.sharpness.split(","):
        for rest in options.rest.split(","):
            changes = {"selection.sharpness": float(sharp), "selection.rest": float(rest)}
            arms[f"sharpness {sharp}, rest {rest}"] = ("dare", changes)
    table = {}
    for name, (preset, changes) in track(arms.items(), description="settings"):
        found = [
            simulated(probe, preset, changes, options.steps, seed) for seed in range(options.seeds)
        ]
        table[name] = {
            key: round(float(np.mean([one[key] for one in found])), 3) for key in found[0]
        }
    keys = list(next(iter(table.values())))
    print("| draw | " + " | ".join(keys) + " |\n" + "|---" * (len(keys) + 1) + "|")
    for name, row in table.items():
        print(f"| {name} | " + " | ".join(str(row[key]) for key in keys) + " |")
    figures = {
        "probe": options.probe.name,
        "problems": len(probe["failed"]),
        "steps": options.steps,
        "seeds": options.seeds,
        "table": table,
    }
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
