"""The back-end for containers that forbid namespaces: Landlock, seccomp and limits."""

from __future__ import annotations

from dare.sandbox.interpreter import Interpreter
from dare.sandbox.launch import Recipe


def _nothing(python: Interpreter) -> list[str]:
    """The interpreter is started as it is; each program gives up its rights by itself."""
    return []


RECIPE = Recipe("landlock", _nothing, stage=False, drop=False)
NONE = Recipe("none", _nothing, stage=False, drop=False)
