"""One error for every bad value: it names the field, shows the value and says how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 30  # names that are still read when listed


class InvalidInput(ValueError):
    """A value DARE cannot work with. `field`, `value` and `fix` are kept for programs."""

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field, self.value, self.fix = field, value, fix
        shown = repr(value)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{field} = {shown}: {fix}")


def require(condition: object, field: str, value: object, fix: str) -> None:
    """Raise `InvalidInput` unless the condition holds."""
    if not condition:
        raise InvalidInput(field, value, fix)


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
