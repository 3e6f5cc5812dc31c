"""DARE: difficulty-adaptive reinforcement learning from verifiable rewards."""

from importlib.metadata import PackageNotFoundError, version

from dare.config import CurriculumConfig
from dare.curriculum import Curriculum, PromptTable, RolloutBatch
from dare.errors import InvalidInput

try:
    __version__ = version("dare-rl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "Curriculum",
    "CurriculumConfig",
    "InvalidInput",
    "PromptTable",
    "RolloutBatch",
    "__version__",
]
