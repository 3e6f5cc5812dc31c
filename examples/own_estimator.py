"""An estimator of difficulty of your own: a moving average of what was observed.

    python examples/own_estimator.py [--steps 20]

Trains the built-in table of logits with your estimator and with the default one. In a recipe you
would write `curriculum: {estimator.name: own_estimator:MovingAverage}`; see docs/estimators.md.
"""

from __future__ import annotations

import argparse

import numpy as np
from own_loop import PROMPTS, step_of

from dare import CurriculumConfig
from dare.curriculum import Estimator, Outcome
from dare.integrations.loop import LoopCurriculum
from dare.simulation.tabular import TabularPolicy


class MovingAverage(Estimator):
    """Half of the last group, half of what was believed before; 0.5 at first."""

    uses_prior = False  # no reference prompts
    scores = "none"  # it reads no log-probs, so none are computed

    def observe(self, outcome: Outcome) -> None:
        """`outcome` has plain, scored rollouts, one entry for each prompt of the step."""
        believed = self._arrays["difficulty"]
        rate = outcome.failures_Q / outcome.trials_Q
        believed[outcome.prompt_Q] += 0.5 * (rate - believed[outcome.prompt_Q])


def errors(estimator: str, steps: int) -> tuple[float, float]:
    """Success rate at the end, and the mean error of the estimate on prompts that were tried."""
    policy = TabularPolicy.random(PROMPTS, seed=0)
    rows = [{"prompt": f"problem {number}"} for number in range(PROMPTS)]
    config = CurriculumConfig.preset("dare", rollout_budget=256, estimator={"name": estimator})
    loop = LoopCurriculum(rows, config)
    for step in range(steps):
        policy = step_of(loop, policy, np.random.default_rng(step))
    truth = policy.true_difficulty()[
        loop.curriculum.prompts.dataset_row_P
    ]  # as the table is sorted
    tried = loop.curriculum.visits_P > 0
    error = np.abs(loop.curriculum.difficulty() - truth)[tried].mean()
    return float(1 - truth.mean()), float(error)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    count = parser.parse_args().steps
    for name in ("dare", f"{__name__}:MovingAverage"):
        accuracy, error = errors(name, count)
        print(f"{name}: success rate {accuracy:.3f}, error of the estimate {error:.3f}")
