"""No estimate at all: every prompt at 0.5 (random selection, GRPO)."""

from __future__ import annotations

from dare.curriculum.estimators.base import Estimator


class UniformEstimator(Estimator):
    """Difficulty 0.5 for every prompt, whatever happens (METHOD 9, random)."""

    scores = "none"
    uses_prior = False
