"""The error for every bad value, and the line for a library that is not installed."""

from __future__ import annotations

from dare_errors import InvalidInput, require, suggest

__all__ = ["InvalidInput", "absent", "first_line", "require", "suggest"]

_EXTRAS = {
    "report": ("plotly", "pyarrow", "rich", "typer"),
    "train": (
        *("accelerate", "datasets", "math_verify", "peft", "torch", "transformers"),
        *("fsspec", "huggingface_hub", "mpmath", "packaging", "sympy"),  # what these bring
    ),
}
"""Libraries that come with each extra of the package, by the name they are imported as."""


def first_line(error: BaseException, most: int = 300) -> str:
    """What an error says, in a line's space."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0][:most]


def absent(error: ModuleNotFoundError, what: str) -> str | None:
    """The line for a library that was left out when DARE was installed, and what to run; None for
    any other module: that it is missing is not a matter of extras."""
    library = (error.name or "").partition(".")[0]
    for extra, libraries in _EXTRAS.items():
        if library in libraries:
            less = " ('dare-rl[report]' if you only read runs)" if extra == "report" else ""
            return f"{what} needs {library}, not installed: pip install 'dare-rl[train]'{less}"
    return None
