"""The trainer: carries rollouts between the curriculum and the policy."""

from dare.training.config import DareConfig
from dare.training.trainer import DareTrainer

__all__ = ["DareConfig", "DareTrainer"]
