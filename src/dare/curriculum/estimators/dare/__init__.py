"""DARE's own estimate: what prompts like this one do now, and how this one differs."""

from dare.curriculum.estimators.dare.estimator import LiveEstimator
from dare.curriculum.estimators.dare.rescored import RescoredEstimator

__all__ = ["LiveEstimator", "RescoredEstimator"]
