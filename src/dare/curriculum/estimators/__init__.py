"""Difficulty estimators: one protocol, interchangeable everywhere."""

from dare.curriculum.estimators.base import Estimator, Measured, Outcome
from dare.curriculum.estimators.bound import clip_bias, snis_bound
from dare.curriculum.estimators.build import Services, build_estimator, estimator_class
from dare.curriculum.estimators.current import CurrentEstimator
from dare.curriculum.estimators.dynamic import DynamicEstimator
from dare.curriculum.estimators.entropy import EntropyEstimator
from dare.curriculum.estimators.greso import GresoEstimator
from dare.curriculum.estimators.judge import JudgeEstimator, Replies, parse_probability
from dare.curriculum.estimators.paper import (
    PaperEstimator,
    effective_sample_size,
    snis_difficulty,
    weights,
)
from dare.curriculum.estimators.posterior import PosteriorEstimator
from dare.curriculum.estimators.previous import PreviousEstimator
from dare.curriculum.estimators.teacher import TeacherEstimator
from dare.curriculum.estimators.uniform import UniformEstimator

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
