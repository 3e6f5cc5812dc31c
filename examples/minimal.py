"""The method that `dare` runs, on one page of NumPy: estimate, draw by value, train.

    python examples/minimal.py [STEPS]

A table of logits is trained with uniform draws (GRPO) and with DARE. Numbers in docstrings are
sections of docs/method.md. The package adds features, learnt variances and expected lengths.
"""

from __future__ import annotations

import sys

import numpy as np

from dare.curriculum.arrays import Array
from dare.simulation.tabular import TabularPolicy

PROMPTS, GROUP, DRAWN = 300, 8, 32  # rollouts of a group, prompts of a step
SHARPNESS, ETA, REST, FADE, OWN = 16.0, 0.05, 4, 0.01, 0.25
GRID = np.linspace(-3, 3, 25)  # deviations over which a belief is summed
Group = tuple[int, int, int]  # prompt, failures, step


def estimate(groups: list[Group], step: int) -> tuple[Array, Array]:
    """4: mean and deviation of each prompt's logit of failing, by one logistic regression."""
    # The parts of a logit: the prompt's own, a shared mean, a trend with age.
    prompt, failures, when = np.array(groups, dtype=int).T
    design = np.zeros((len(groups), PROMPTS + 2))
    design[np.arange(len(groups)), prompt] = 1.0
    design[:, -2], design[:, -1] = 1.0, (step - when) / 10
    counts = 1 / (1 + FADE * GROUP * (step - when))  # old groups count less
    precision, mode = np.append(np.full(PROMPTS, OWN), [0.1, 1.0]), np.zeros(PROMPTS + 2)
    for _ in range(5):  # Newton's method on the log-posterior
        rate = 1 / (1 + np.exp(-design @ mode))
        slope = design.T @ (counts * (failures - GROUP * rate)) - precision * mode
        bend = (design.T * (counts * GROUP * rate * (1 - rate))) @ design + np.diag(precision)
        mode += np.linalg.solve(bend, slope)
    now = np.hstack([np.eye(PROMPTS), np.full((PROMPTS, 2), [1.0, 0.0])])  # of age 0
    return now @ mode, np.sqrt((now @ np.linalg.inv(bend) * now).sum(1))


def draw(mean: Array, deviation: Array, rested: Array, rng: np.random.Generator) -> Array:
    """5: by the chance of a mixed group under the whole belief, without replacement (Gumbel)."""
    rate = 1 / (1 + np.exp(-(mean[:, None] + deviation[:, None] * GRID)))
    mixed = 1 - rate**GROUP - (1 - rate) ** GROUP
    weight = np.average(mixed, axis=1, weights=np.exp(-(GRID**2) / 2)) ** SHARPNESS * rested
    weight = (1 - ETA) * weight / weight.sum() + ETA / PROMPTS
    return np.argsort(-np.log(weight) - rng.gumbel(size=PROMPTS))[:DRAWN]


def train(method: str, steps: int, seed: int = 0) -> dict[str, list[float]]:
    """Success rate over all prompts and share of mixed groups, step by step."""
    policy = TabularPolicy.random(PROMPTS, seed=seed, hardness=(0.3, 0.2))
    groups, last = list[Group](), np.full(PROMPTS, -REST - 1)
    log: dict[str, list[float]] = {"accuracy": [], "mixed": []}
    for step in range(steps):
        rng = np.random.default_rng([seed, step])
        drawn = rng.permutation(PROMPTS)[:DRAWN]
        if method == "dare" and groups:
            drawn = draw(*estimate(groups, step), step - last > REST, rng)
        last[drawn] = step
        rollouts = policy.sample(np.repeat(drawn, GROUP), rng)
        reward = rollouts.reward_R.reshape(DRAWN, GROUP)
        failures = (GROUP - reward.sum(1)).astype(int)
        groups += [(int(p), int(f), step) for p, f in zip(drawn, failures, strict=True)]
        # 8: advantages inside a group; every prompt, rollout and token counts alike.
        advantage = (reward - reward.mean(1, keepdims=True)) / (reward.std(1, keepdims=True) + 1e-6)
        length = np.diff(rollouts.offsets)
        coefficient = np.repeat(advantage.ravel() / reward.size / length, length)
        policy = policy.gradient_step(rollouts, coefficient, 20.0)
        log["accuracy"].append(float(1 - policy.true_difficulty().mean()))
        log["mixed"].append(float(((failures > 0) & (failures < GROUP)).mean()))
    return log


if __name__ == "__main__":
    for name in ("grpo", "dare"):
        log = train(name, int(sys.argv[1]) if len(sys.argv) > 1 else 40)
        print(f"{name}: success rate {log['accuracy'][-1]:.3f}, mixed {np.mean(log['mixed']):.0%}")
