"""A training loop of your own, with DARE's curriculum: NumPy alone, no trainer of ours.

    python examples/own_loop.py [--steps 40] [--preset dare]

The policy is a table of logits whose true success rate is known; in its place goes your engine,
and in place of `sample` and `gradient_step` its generate and its update.
"""

from __future__ import annotations

import argparse

import numpy as np

from dare import CurriculumConfig
from dare.integrations.loop import LoopCurriculum
from dare.simulation.tabular import TabularPolicy

PROMPTS, LEARNING_RATE = 400, 20.0


def step_of(loop: LoopCurriculum, policy: TabularPolicy, rng: np.random.Generator) -> TabularPolicy:
    """One step: ask, roll out, tell, update. Returns the policy after it."""
    asked = loop.ask()
    ids = [one.id for one in asked for _ in range(one.rollouts)]
    row = np.array([one.row for one in asked for _ in range(one.rollouts)])
    sampled = policy.sample(row, rng)
    lengths = np.diff(sampled.offsets)
    batch = loop.tell(ids, sampled.reward_R.tolist(), lengths.tolist())
    if batch is not None:  # None: these rollouts were for the estimate, not to train on
        # REINFORCE on the curriculum's advantages; by weight_R groups of any size count alike.
        coefficient = batch.advantage_R * batch.weight_R / lengths
        policy = policy.gradient_step(sampled, np.repeat(coefficient, lengths), LEARNING_RATE)
    loop.updated()
    return policy


def train(steps: int, preset: str = "dare") -> list[float]:
    """Success rate over all prompts before each step and after the last."""
    policy = TabularPolicy.random(PROMPTS, seed=0)
    rows = [{"prompt": f"problem {number}"} for number in range(PROMPTS)]
    loop = LoopCurriculum(rows, CurriculumConfig.preset(preset, rollout_budget=256))
    accuracy = [float(1 - policy.true_difficulty().mean())]
    for step in range(steps):
        policy = step_of(loop, policy, np.random.default_rng(step))
        accuracy.append(float(1 - policy.true_difficulty().mean()))
    return accuracy


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--preset", default="dare")
    options = parser.parse_args()
    accuracy = train(options.steps, options.preset)
    print(f"success rate {accuracy[0]:.3f} -> {accuracy[-1]:.3f} in {options.steps} steps")


if __name__ == "__main__":
    main()
