"""GRPO in bf16 and in float32 from the same start: does the precision change what is learnt?

    python benchmarks/gpu_precision.py --model FOLDER --train gsm8k/train.jsonl \
        --test gsm8k/test.jsonl --out runs/precision [--kinds bf16,float32]

Both runs have the same seed, problems, rollouts a step and settings; held-out problems are answered
greedily before and after. Which answers changed from wrong to right is compared by McNemar's exact
test. A run that was cut off goes on from its last checkpoint. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from estimators_gpu import number_reward, rows_of
from scipy import stats

from dare import DareConfig, DareTrainer
from dare.policy.generate import GenerationRequest
from dare_decoder import Sampling


def main() -> None:
    """Train and evaluate each kind, then compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", default="bf16,float32")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--problems", type=int, default=256)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for kind in options.kinds.split(","):
        file = options.out / f"{kind}.json"
        if not file.is_file():
            options.out.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(run(options, kind)) + "\n", encoding="utf-8")
        figures[kind] = json.loads(file.read_text(encoding="utf-8"))
        print(kind, {k: v for k, v in figures[kind].items() if k != "right"}, flush=True)
    if len(figures) == 2:
        first, second = (np.array(one["right"]["end"], bool) for one in figures.values())
        only = int((first & ~second).sum()), int((second & ~first).sum())
        figures["right_only_in_one"] = only
        figures["p_value"] = float(stats.binomtest(only[0], max(1, sum(only))).pvalue)
    print(json.dumps(figures))


def run(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """One run: accuracy before and after, seconds and memory."""
    trainer = DareTrainer(
        options.model,
        number_reward,
        DareConfig(
            str(options.out / kind),
            preset="grpo",
            bf16=kind == "bf16",
            tf32=True,
            seed=options.seed,
            max_steps=options.steps,
            rollout_budget=options.rollouts,
            per_device_train_batch_size=32,
            max_completion_length=400,
            temperature=0.6,
            top_p=0.95,
            learning_rate=2e-6,
            save_strategy="no",
            report_to=[],
        ),
        rows_of(options.train)[:2048],
    )
    trainer.quiet()
    test = rows_of(options.test)[: options.problems]
    right = {"start": answered(trainer, test)}
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    right["end"] = answered(trainer, test)
    lines = [
        json.loads(line) for line in (options.out / kind / "metrics.jsonl").open(encoding="utf-8")
    ]
    return {
        "accuracy": {when: float(np.mean(found)) for when, found in right.items()},
        "seconds": round(seconds, 1),
        "reward": [round(line["reward"], 3) for line in lines],
        "length": [round(line["length"], 1) for line in lines],
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        "right": right,
    }


def answered(trainer: DareTrainer, rows: list[dict[str, Any]]) -> list[int]:
    """1 where the greedy answer is right."""
    prompts = [trainer.store.encode_prompt(row["prompt"]) for row in rows]
    request = GenerationRequest(
        prompts, np.arange(len(rows)), np.full(len(rows), 400), np.arange(len(rows)), 0, 0
    )
    made = trainer.policy.generate(request, Sampling(0.0, 1.0))
    texts = trainer.policy.tokenizer.batch_decode(made.tokens, skip_special_tokens=True)
    found = number_reward(texts, [row["answer"] for row in rows])
    return [int(value) for value in found]


if __name__ == "__main__":
    main()
