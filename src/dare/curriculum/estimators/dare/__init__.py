"""DARE's own estimate: what prompts like this one do now, and how this one differs."""

from dare.curriculum.estimators.dare.estimator import LiveEstimator

__all__ = ["LiveEstimator"]
