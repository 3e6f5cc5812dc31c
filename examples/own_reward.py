"""A reward of your own: the answer must be right and the response short.

    python examples/own_reward.py [--steps 2]

Trains the built-in policy on a CPU. A reward is a function of the completions and of any columns of
the data that it names; TRL's functions run as they are. See docs/rewards.md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from dare import DareConfig, DareTrainer, pocket, tasks


def right_and_short(
    completions: list[str],
    answer: list[str],
    completion_ids: list[list[int]],
    log_metric: Callable[[str, float], None],
    **columns: Any,
) -> list[float | None]:
    """1 for a right answer, up to 0.2 less for a long one, 0 for a wrong one."""
    rewards: list[float | None] = []
    for text, gold, ids in zip(completions, answer, completion_ids, strict=True):
        boxes = re.findall(r"\\boxed{([^}]*)}", text)
        right = bool(boxes) and boxes[-1].strip() == str(gold)
        rewards.append(1.0 - 0.2 * min(len(ids) / 64, 1.0) if right else 0.0)
    log_metric("boxed_share", sum("boxed" in text for text in completions) / len(completions))
    return rewards


def solved(completions: list[str], rewards: list[float], **columns: Any) -> list[bool]:
    """What counts as a success for the difficulty: a right answer, however long."""
    return [reward > 0 for reward in rewards]


def trainer(folder: str, steps: int) -> DareTrainer:
    """A trainer with that reward; in a recipe: `reward: own_reward:right_and_short`."""
    args = DareConfig(
        folder,
        max_steps=steps,
        rollout_budget=64,
        per_device_train_batch_size=64,
        max_completion_length=64,
        temperature=1.0,
        top_p=1.0,
        learning_rate=3e-4,
        success_threshold=solved,
        report_to="none",
    )
    return DareTrainer(
        pocket.load_policy(),
        right_and_short,
        args,
        tasks.generate(256, seed=0),
        processing_class=pocket.load_tokenizer(),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--out", default="runs/own_reward")
    options = parser.parse_args()
    trainer(options.out, options.steps).train()
