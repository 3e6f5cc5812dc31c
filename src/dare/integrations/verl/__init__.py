"""DARE's curriculum in verl 0.9: `trainer.v1.trainer_mode: dare`.

verl loads this module by the entry point `verl.plugins`, in each of its processes, and mentions a
failure at DEBUG alone: the run would end with "Unknown trainer 'dare'", and nobody would know why.
So what goes wrong here is told as an error before verl hears of it.
"""

from __future__ import annotations

import logging
from importlib import import_module

from dare.errors import require

_LOG = logging.getLogger(__name__)


def register() -> None:
    """Make the trainer `dare` and the agent loop `dare_agent` known to verl."""
    try:
        version = import_module("verl").__version__
        fix = "the plug-in needs 0.9.1 or a later 0.9: pip install 'verl>=0.9.1,<0.10'"
        fits = version.startswith("0.9.") and not version.startswith("0.9.0")
        require(fits, "verl", version, fix)
        for part in ("agent_loop", "trainer"):
            import_module(f"{__name__}.{part}")
    except Exception as error:
        _LOG.error("DARE's plug-in for verl cannot be used: %s: %s", type(error).__name__, error)
        raise


register()
