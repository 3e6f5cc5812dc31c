"""DARE: difficulty-adaptive reinforcement learning from verifiable rewards."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dare.config import CurriculumConfig
    from dare.curriculum import Curriculum, PromptTable, RolloutBatch
    from dare.errors import InvalidInput
    from dare.training import DareConfig, DareTrainer

try:
    __version__ = version("dare-rl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "Curriculum",
    "CurriculumConfig",
    "DareConfig",
    "DareTrainer",
    "InvalidInput",
    "PromptTable",
    "RolloutBatch",
    "__version__",
]

_HOME = {
    "Curriculum": "dare.curriculum",
    "CurriculumConfig": "dare.config",
    "DareConfig": "dare.training",
    "DareTrainer": "dare.training",
    "InvalidInput": "dare.errors",
    "PromptTable": "dare.curriculum",
    "RolloutBatch": "dare.curriculum",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for: `import dare` loads no model library."""
    if name not in _HOME:
        raise AttributeError(f"module 'dare' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        from dare.errors import absent

        line = absent(error, f"dare.{name}")
        if line is None:
            raise
        raise ModuleNotFoundError(line, name=error.name) from None
