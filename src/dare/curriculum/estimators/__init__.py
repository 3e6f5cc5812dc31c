"""Difficulty estimators: one protocol, interchangeable everywhere."""

from dare.curriculum.estimators.base import Estimator, Measured
from dare.curriculum.estimators.baselines import (
    CurrentEstimator,
    EntropyEstimator,
    JudgeEstimator,
    PosteriorEstimator,
    PreviousEstimator,
    Replies,
    TeacherEstimator,
    UniformEstimator,
    parse_probability,
)
from dare.curriculum.estimators.build import Services, build_estimator, estimator_class
from dare.curriculum.estimators.dynamic import DynamicEstimator, GresoEstimator
from dare.curriculum.estimators.paper import (
    PaperEstimator,
    clip_bias,
    effective_sample_size,
    snis_bound,
    snis_difficulty,
    weights,
)
from dare.curriculum.rollouts import Outcome

__all__ = [
    "CurrentEstimator",
    "DynamicEstimator",
    "EntropyEstimator",
    "Estimator",
    "GresoEstimator",
    "JudgeEstimator",
    "Measured",
    "Outcome",
    "PaperEstimator",
    "PosteriorEstimator",
    "PreviousEstimator",
    "Replies",
    "Services",
    "TeacherEstimator",
    "UniformEstimator",
    "build_estimator",
    "clip_bias",
    "effective_sample_size",
    "estimator_class",
    "parse_probability",
    "snis_bound",
    "snis_difficulty",
    "weights",
]
