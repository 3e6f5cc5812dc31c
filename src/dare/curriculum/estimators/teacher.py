"""DOTS: a teacher head predicts difficulty from a few prompts that are rolled out every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.coldstart import check_embeddings, choose_references
from dare.curriculum.estimators.base import Estimator, Outcome
from dare.curriculum.teacher_head import TeacherHead
from dare.errors import require


class TeacherEstimator(Estimator):
    """Every step a fresh reference set is rolled out; all other prompts are predicted (METHOD 9).

    References keep their measured failure rate, which is closer than the head's word on them.
    """

    scores = "none"
    uses_prior = False

    needs = frozenset({"embeddings", "teacher"})

    def __init__(self, count: int, head: TeacherHead, embeddings: Any, references: int) -> None:
        super().__init__(count)
        self._head = head
        self._embeddings = check_embeddings(embeddings, count)
        self._references = references
        self._scalars.update(step=-1, head=head.digest())

    def probe(self, step: int, rng: np.random.Generator) -> Array | None:
        """The step's reference set, once."""
        if self._scalars["step"] == step:
            return None
        return choose_references(self.count, self._references, rng)

    def observe(self, outcome: Outcome) -> None:
        """Predict all prompts from the reference set; later groups of the step only refine it."""
        rows = outcome.prompt_Q
        if not len(rows):  # every reference unscored: the last prediction stands
            self._scalars["step"] = outcome.step
            return
        rate = outcome.failures_Q / outcome.trials_Q
        if self._scalars["step"] != outcome.step:
            success = self._head.predict(self._embeddings, self._embeddings[rows], 1.0 - rate)
            self._arrays["difficulty"] = 1.0 - np.asarray(success, dtype=np.float64)
            self._scalars["step"] = outcome.step
        self._arrays["difficulty"][rows] = rate

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore; the head itself is not part of the state, so it must be the same one."""
        then, now = state["scalars"].get("head"), self._head.digest()
        fix = f"the state was saved with another head ({then}); resume with the same file"
        require(then in (None, now), "estimator.teacher", now, fix)
        super().load_state_dict(state)
        self._scalars["head"] = now
