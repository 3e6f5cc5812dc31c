"""The estimators that have to generate: they are asked about the study's prompts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dare.config import CurriculumConfig
from dare.curriculum.arrays import Array, keyed_rng
from dare.curriculum.coldstart import choose_references
from dare.curriculum.estimators.base import Measured
from dare.curriculum.estimators.baselines import (
    EntropyEstimator,
    JudgeEstimator,
    Replies,
    TeacherEstimator,
)
from dare.curriculum.estimators.build import Services
from dare.curriculum.rollouts import Outcome
from dare.curriculum.teacher_head import TeacherHead
from dare.study.cost import Cost
from dare.study.fresh import fresh_rollouts

if TYPE_CHECKING:
    from dare.training.trainer import DareTrainer

ASKED = {
    "teacher": "DOTS: a head over embeddings and fresh rollouts of reference prompts",
    "entropy": "EDCO: token entropy of a prefix, from the lowest to the highest measured",
    "judge": "LLM-judge: the policy's own word",
    "current-fr": "a fresh group of rollouts",
}


class Asked:
    """Measures each at a chosen step; its tokens count under its own name, never in the run."""

    def __init__(
        self, trainer: DareTrainer, embeddings: Array | None, teacher: TeacherHead | None = None
    ) -> None:
        self._trainer, self._embeddings, self._teacher = trainer, embeddings, teacher
        self.costs: dict[str, Cost] = {}

    def estimate(self, name: str, rows: Array) -> Array:
        """Failure rates of these prompts by the estimator of that name."""
        cost = self.costs.setdefault(name, Cost())
        with cost.measure():
            found = {
                "teacher": self._by_teacher,
                "entropy": self._by_entropy,
                "judge": self._by_judge,
                "current-fr": self._by_rollouts,
            }[name](rows, cost)
        # The teacher's references serve every prompt; the others answer for those asked about.
        cost.estimates += len(self._trainer.store) if name == "teacher" else len(rows)
        return found

    def _by_rollouts(self, rows: Array, cost: Cost) -> Array:
        group = self._trainer.settings.medium.group_size
        fresh = fresh_rollouts(self._trainer, rows, group, "study current-fr")
        cost.generated += fresh.tokens
        return np.where(fresh.trials_Q > 0, fresh.rate_Q, 0.5)

    def _by_entropy(self, rows: Array, cost: Cost) -> Array:
        measure = self._services.entropy
        assert measure is not None, "the trainer supplies it"

        def of(places: Array) -> Measured:
            return measure(rows[places])

        estimator = EntropyEstimator(len(rows), of)
        tokens = estimator.refresh(self._step, self._rng("entropy"))
        cost.generated, cost.scored = cost.generated + tokens, cost.scored + tokens
        return estimator.difficulty()

    def _by_judge(self, rows: Array, cost: Cost) -> Array:
        ask = self._services.ask
        assert ask is not None, "the trainer supplies it"

        def of(places: Array) -> Replies:
            return ask(rows[places])

        estimator = JudgeEstimator(len(rows), of)
        cost.generated += estimator.refresh(self._step, self._rng("judge"))
        return estimator.difficulty()

    def _by_teacher(self, rows: Array, cost: Cost) -> Array:
        """References are drawn from the other prompts: none of those asked about is measured."""
        assert self._embeddings is not None, "prompts are embedded where the teacher takes part"
        count = len(self._embeddings)
        others = np.setdiff1d(np.arange(count), rows)
        wanted = CurriculumConfig.preset("dots").estimator.references
        references = others[choose_references(len(others), wanted, self._rng("references"))]
        group = self._trainer.settings.medium.group_size
        fresh = fresh_rollouts(self._trainer, references, group, "study references")
        cost.generated += fresh.tokens
        head = self._teacher or TeacherHead.init(self._embeddings.shape[1])
        estimator = TeacherEstimator(count, head, self._embeddings, wanted)
        scored = fresh.trials_Q > 0
        trials, failures = fresh.trials_Q[scored], fresh.failures_Q[scored]
        estimator.observe(Outcome(self._step, references[scored], trials, failures))
        return estimator.difficulty()[rows]

    @property
    def _services(self) -> Services:
        assert self._trainer.curriculum is not None, "the run has begun"
        return self._trainer.curriculum.services

    @property
    def _step(self) -> int:
        return int(self._trainer.state.global_step)

    def _rng(self, purpose: str) -> np.random.Generator:
        return keyed_rng(self._trainer.args.seed, self._step, f"study {purpose}")
