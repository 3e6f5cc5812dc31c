"""The engine-free heart of DARE: plans each step and learns from its outcome."""

from dare.curriculum.batch import TrainBatch
from dare.curriculum.buffer import RolloutBuffer, ScoreRequest
from dare.curriculum.curriculum import Curriculum
from dare.curriculum.estimators import Estimator, Outcome, Services
from dare.curriculum.plan import StepPlan
from dare.curriculum.prompts import PromptTable, prompt_id
from dare.curriculum.rollouts import Conditioning, Finish, RolloutBatch
from dare.curriculum.tiers import Tier

__all__ = [
    "Conditioning",
    "Curriculum",
    "Estimator",
    "Finish",
    "Outcome",
    "PromptTable",
    "RolloutBatch",
    "RolloutBuffer",
    "ScoreRequest",
    "Services",
    "StepPlan",
    "Tier",
    "TrainBatch",
    "prompt_id",
]
