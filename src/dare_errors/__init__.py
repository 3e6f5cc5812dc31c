"""One error for every bad value: it names the field, shows the value and says how to fix it.

A package of its own, under `dare_decoder`, `dare_sandbox` and `dare_verify`, so that these raise
what `dare` raises without knowing it.
"""

from __future__ import annotations

import datetime
import difflib
import reprlib
from collections.abc import Iterable

__all__ = ["InvalidInput", "require", "suggest"]

_LISTED = 30  # names that are still read when listed


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
    if isinstance(value, datetime.date):  # of YAML: as it is written there
        value = _AsShown(value)
    try:
        shown = reprlib.repr(value) if nested and not _short(value) else repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: it would end a run as if it were done
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


def suggest(name: str, known: Iterable[str]) -> str:
    """'did you mean …?' for a misspelt name, or the list of what there is."""
    known = sorted(set(known))
    # The name itself is the nearest; many ask before they know that something is wrong.
    near = [name] if name in known else difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if len(known) <= _LISTED:
        return f"choose one of {', '.join(known)}"
    nearest = difflib.get_close_matches(name, known, n=5, cutoff=0.0)
    return f"the nearest of {len(known)} names are {', '.join(nearest)}"
