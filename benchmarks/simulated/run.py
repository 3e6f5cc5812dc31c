"""The loop that couples a curriculum with a simulated learner, and what it measures."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from dare.config import CurriculumConfig
from dare.curriculum import Curriculum
from dare.curriculum.arrays import Array, keyed_rng
from dare.curriculum.batch import TrainBatch
from dare.curriculum.plan import StepPlan
from simulated.learner import SimulatedLearner

_SAMPLE = 20_000  # rows on which an error is averaged: its sampling error is below 0.002
_TIERS = ("easy", "medium", "hard")
_STEP_COLUMNS = ("varied", "shaping_share", "mae_drawn", *_TIERS, *(f"true_{t}" for t in _TIERS))


def intrinsic_error(difficulty: Array, rollouts: int = 8) -> Array:
    """E|Binomial(n, d)/n - d|: the error of n fresh rollouts, exactly."""
    d = np.asarray(difficulty, dtype=np.float64)
    error = np.zeros_like(d)
    for k in range(rollouts + 1):
        mass = math.comb(rollouts, k) * d**k * (1.0 - d) ** (rollouts - k)
        error += mass * np.abs(k / rollouts - d)
    return error


def simulate(
    config: CurriculumConfig,
    learner: SimulatedLearner,
    steps: int,
    refresh: bool = True,
    every: int = 10,
    rollouts: int | None = None,
    embeddings: bool = True,
) -> dict[str, Any]:
    """Train for `steps`, or until `rollouts` are generated (probes count), measuring every `every`.

    Errors are of the estimate as it stands after an update, against the true failure rate of the
    updated policy. Shares are means over the steps since the measurement before: `easy` by the
    tier that the plan gave, `true_easy` by the true failure rate of the drawn prompt.
    """
    curriculum = Curriculum(learner.table(), config, learner.services(embeddings))
    record = _Record(curriculum, learner)
    record.measure()
    while curriculum.step < steps and (rollouts is None or record.generated < rollouts):
        started = time.perf_counter()
        plan = curriculum.plan()
        fresh = learner.generate(plan, plan.step)
        batch = curriculum.observe(fresh)
        record.generated += len(fresh)
        if batch is None:
            record.seconds += time.perf_counter() - started
            continue
        if not batch.fresh_R.all():
            curriculum.record_scores(batch.uid_R, learner.score(batch.rollouts), plan.step)
        record.observe(plan, batch)
        learner.learn(batch)
        if refresh:
            budget = config.estimator.refresh_budget(int(fresh.length_R.sum()))
            curriculum.refresh(learner.score, budget)
        record.seconds += time.perf_counter() - started
        if curriculum.step % every == 0:
            record.measure()
    if record.columns["generated"][-1] != record.generated:
        record.measure()
    return {name: np.array(values) for name, values in record.columns.items()}


class _Record:
    """Columns of measurements, one row a measurement; the first is before any step."""

    def __init__(self, curriculum: Curriculum, learner: SimulatedLearner) -> None:
        self._curriculum, self._learner = curriculum, learner
        self._rng = keyed_rng(learner.world.seed, 0, "measure")
        count = learner.world.prompts
        size = min(count, _SAMPLE)
        self._rows = np.sort(self._rng.choice(count, size=size, replace=False, shuffle=False))
        self.columns: dict[str, list[Any]] = {}
        self.generated, self.seconds = 0, 0.0
        self._clear()

    def _clear(self) -> None:
        self._steps: list[dict[str, float]] = []

    def observe(self, plan: StepPlan, batch: TrainBatch) -> None:
        """Take in one training step, before the policy learns from it."""
        truth = self._learner.true_difficulty(plan.prompt_P)
        config = self._curriculum.config
        tier = (truth >= config.easy.below).astype(int) + (truth > config.hard.above)
        count = max(len(tier), 1)
        planned = np.bincount(plan.tier_P, minlength=3) / count
        real = np.bincount(tier, minlength=3) / count
        values = {"varied": float(np.mean(batch.varied_N)), "shaping_share": batch.shaping_share}
        values["mae_drawn"] = _mean(np.abs(plan.difficulty_P - truth))
        for place, name in enumerate(_TIERS):
            values[name], values[f"true_{name}"] = float(planned[place]), float(real[place])
        self._steps.append(values)

    def measure(self) -> None:
        """Compare the estimate with the truth and write a row."""
        curriculum, learner = self._curriculum, self._learner
        estimate = curriculum.estimator.difficulty()
        seen = np.flatnonzero(curriculum.visits_P)
        if len(seen) > _SAMPLE:
            seen = self._rng.choice(seen, _SAMPLE, replace=False)
        rows = self._rows
        truth, truth_seen = learner.true_difficulty(rows), learner.true_difficulty(seen)
        values: dict[str, float] = {
            "step": curriculum.step,
            "generated": self.generated,
            "seconds": self.seconds,
            "accuracy": learner.accuracy(),
            "length": learner.mean_length(),
            "mae_seen": _mean(np.abs(estimate[seen] - truth_seen)),
            "mae_all": _mean(np.abs(estimate[rows] - truth)),
            "intrinsic_seen": _mean(intrinsic_error(truth_seen)),
            "intrinsic_all": _mean(intrinsic_error(truth)),
            "coverage": curriculum.coverage,
        }
        for name in _STEP_COLUMNS:
            values[name] = _mean(np.array([step[name] for step in self._steps]))
        for name, value in values.items():
            self.columns.setdefault(name, []).append(value)
        self._clear()


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else math.nan
