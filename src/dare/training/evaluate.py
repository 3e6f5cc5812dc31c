"""Evaluation during training: the rewards of training on held-out prompts, by level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from accelerate.utils import gather_object

from dare.policy.generate import GenerationRequest
from dare.policy.score import Sampling
from dare.training.prompts import PromptStore

if TYPE_CHECKING:
    from dare.training.trainer import DareTrainer


def evaluate_policy(trainer: DareTrainer, dataset: Any) -> dict[str, Any]:
    """Accuracy, tokens and truncation, overall and by level; unscored responses are counted."""
    args = trainer.args
    store = PromptStore(dataset, trainer.processing_class, args.system_prompt)
    rows = np.repeat(np.arange(len(store)), args.eval_samples)
    mine = np.arange(
        trainer.accelerator.process_index, len(rows), trainer.accelerator.num_processes
    )
    budget = trainer.settings.max_tokens
    greedy = args.eval_temperature == 0.0
    sampling = Sampling(args.eval_temperature, 1.0 if greedy else args.top_p, args.top_k)
    request = GenerationRequest(
        prompts=[store.tokens(row) for row in range(len(store))],
        prompt_R=rows[mine],
        max_tokens_R=np.full(len(mine), budget, dtype=np.int64),
        noise_R=mine,
        seed=args.seed,
        step=trainer.state.global_step,
        purpose="evaluate",
    )
    generated = trainer.generator.generate(request, sampling)
    reward = trainer.collector.reward(rows[mine], generated.tokens, store)
    local = [
        (int(row), value, len(tokens), int(finish))
        for row, value, tokens, finish in zip(
            mine, reward, generated.tokens, generated.finish_R, strict=True
        )
    ]
    everyone = gather_object(local) if trainer.accelerator.num_processes > 1 else local
    everyone.sort()
    level = [store.table.levels[code] for code in store.table.level_P[rows].tolist()]
    return summary(everyone, level)


def summary(records: list[tuple[int, float | None, int, int]], level: list[str]) -> dict[str, Any]:
    """Means over scored responses, and the same for each level."""

    def of(picked: list[tuple[int, float | None, int, int]]) -> dict[str, Any]:
        scored = [value for _, value, _, _ in picked if value is not None]
        return {
            "accuracy": float(np.mean(scored)) if scored else None,
            "tokens": float(np.mean([size for _, _, size, _ in picked])),
            "truncated": float(np.mean([finish for _, _, _, finish in picked])),
            "responses": len(picked),
            "unscored": len(picked) - len(scored),
        }

    by_level = {
        name: of([record for record in records if level[record[0]] == name])
        for name in sorted(set(level))
    }
    return {**of(records), "by_level": by_level}
