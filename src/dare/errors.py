"""One error for every bad value: it names the field, shows the value and says how to mend it."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable

_LISTED = 30  # names that are still read when listed
_EXTRAS = {
    "report": ("plotly", "pyarrow", "rich", "typer"),
    "train": (
        *("accelerate", "datasets", "math_verify", "peft", "torch", "transformers"),
        *("fsspec", "huggingface_hub", "mpmath", "packaging", "sympy"),  # what these bring
    ),
}
"""Libraries that come with each extra of the package, by the name they are imported as."""


class InvalidInput(ValueError):
    """A value DARE cannot work with. `field`, `value` and `fix` are kept for programs."""

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field, self.value, self.fix = field, value, fix
        super().__init__(f"{field} = {_shown(value)}: {fix}")

    def __reduce__(self) -> tuple[type, tuple[str, object, str]]:
        """A worker's error reaches the process that waits for it: not every value can be sent, so
        that all but plain ones go as the text that they are shown as."""
        plain = self.value is None or isinstance(self.value, (str, int, float))
        value = self.value if plain else _AsShown(_shown(self.value))
        return type(self), (self.field, value, self.fix)


class _AsShown(str):
    """A text that shows itself without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _shown(value: object) -> str:
    """The value in a line's space, whatever it is: a few aliases of YAML can stand for gigabytes,
    and an object may not know how to show itself."""
    nested = isinstance(value, (dict, list, tuple, set))
    try:
        shown = reprlib.repr(value) if nested and not _short(value) else repr(value)
    except Exception as error:
        shown = f"<{type(value).__name__}, {type(error).__name__} when shown>"
    shown = " ".join(shown.splitlines())  # tables and tensors have several
    return shown if len(shown) <= 120 else shown[:117] + "..."


def _short(value: object, depth: int = 3) -> bool:
    """Whether all that a value holds is quickly shown."""
    if not isinstance(value, (dict, list, tuple, set)):
        return True
    inside = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
    return len(inside) <= 20 and depth > 0 and all(_short(one, depth - 1) for one in inside)


def require(condition: object, field: str, value: object, fix: str) -> None:
    """Raise `InvalidInput` unless the condition holds."""
    if not condition:
        raise InvalidInput(field, value, fix)


def absent(error: ModuleNotFoundError, what: str) -> str | None:
    """The line for a library that was left out when DARE was installed, and what to run; None for
    any other module: that it is missing is not a matter of extras."""
    library = (error.name or "").partition(".")[0]
    for extra, libraries in _EXTRAS.items():
        if library in libraries:
            less = " ('dare-rl[report]' if you only read runs)" if extra == "report" else ""
            return f"{what} needs {library}, not installed: pip install 'dare-rl[train]'{less}"
    return None


def suggest(name: str, known: Iterable[str]) -> str:
    """'did you mean …?' for a misspelt name, or the list of what there is."""
    known = sorted(set(known))
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if len(known) <= _LISTED:
        return f"choose one of {', '.join(known)}"
    nearest = difflib.get_close_matches(name, known, n=5, cutoff=0.0)
    return f"the nearest of {len(known)} names are {', '.join(nearest)}"
