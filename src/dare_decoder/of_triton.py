"""Whether an error says that Triton cannot be used here: missing, broken, or without a compiler."""

from __future__ import annotations

import traceback

import torch


def of_triton(error: BaseException) -> str | None:
    """A line about the error where Triton raised it or cannot be imported; None of other errors.

    Triton builds its launchers with a C compiler when a kernel first runs. Without one, it raises
    errors of many kinds, so what counts is where they come from.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return None  # a smaller batch may do
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
    if "triton" not in modules and not isinstance(error, ImportError):
        return None
    said = str(error).partition("\n")[0][:200]
    return f"Triton, which needs a C compiler, cannot be used ({type(error).__name__}: {said})"
