"""Which settings act beside which others. One that does nothing cannot be written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from dare.config.nested import flat
from dare.errors import InvalidInput


def _of(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


_PROBES = _of("estimator", "max_probes")
_REFILLS = (*_PROBES, *_of("estimator", "probe_factor refill_margin"))
_SHARES = _of("selection", "explore_start explore_floor")
_EXPLORE = ("selection.explore", *_SHARES)
_TIER = "group_size max_tokens_ratio clip_low clip_high"
_EASY = _of("easy", f"{_TIER} length_penalty")
_HARD = _of("hard", f"{_TIER} plain extra length_bonus")
_PRIOR = _of("cold_start", "train group_size temperature")

ESTIMATOR_READS: dict[str, tuple[str, ...]] = {
    "dare": ("estimator.refresh_share", "selection.per_token"),
    "dare-rescored": ("estimator.refresh_share", "selection.per_token"),
    "paper": (
        *_of("estimator", "clip ess_threshold below_threshold refresh_share"),
        *_PRIOR,
    ),
    "previous-fr": (),
    "current-fr": (*_PROBES, *_of("estimator", "target_low target_high")),
    "dynamic": _REFILLS,
    "greso": (*_REFILLS, *_of("estimator", "greso_target greso_start greso_step")),
    "posterior": ("estimator.posterior_discount",),
    "entropy": ("estimator.candidates",),
    "judge": ("estimator.candidates",),
    "teacher": _of("estimator", "references teacher"),
    "uniform": (),
}
"""What each shipped estimator reads; one of your own may read all."""
ESTIMATORS = tuple(ESTIMATOR_READS)
"""Names of the shipped estimators."""

SELECTOR_READS: dict[str, tuple[str, ...]] = {
    "value": _of("selection", "sharpness per_token eta rest"),
    "beta": (*_of("selection", "kappa eta"), *_EXPLORE),
    "softmax": ("selection.temperature", *_EXPLORE),
    "thompson": ("selection.target", *_EXPLORE),
    "uniform": _EXPLORE,
}
"""What each selector reads."""


class Decides(NamedTuple):
    """A setting whose value decides whether others act."""

    name: str
    reads: Mapping[Any, tuple[str, ...]]
    kind: Callable[[Any], Any] = lambda value: value
    """From its value to a key of `reads`."""
    words: str = ""
    """What it must be for the others to act, where no list of values says it."""


TABLE = (
    Decides("estimator.name", ESTIMATOR_READS),
    Decides("selection.name", SELECTOR_READS),
    Decides(
        "selection.explore",
        {
            "supply": _SHARES,
            "coverage": _SHARES,
            "release": (),
            "fixed": ("selection.explore_start",),
            "off": (),
        },
    ),
    Decides("cold_start.references", {True: _PRIOR, False: ()}, bool, "above 0"),
    Decides(
        "tiers",
        {
            True: (
                *("easy.use", "easy.below", *_EASY, "hard.use", "hard.above", *_HARD),
                "advantage.shape_alone",
            ),
            False: (),
        },
    ),
    Decides("easy.use", {True: _EASY, False: ()}),
    Decides("hard.use", {True: _HARD, False: ()}),
    Decides(
        "fresh_share",
        {True: _of("replay", "max_age times priority"), False: ()},
        lambda share: share < 1,
        "below 1",
    ),
    Decides("group_sizes", {"value": ("smallest_group", "largest_group"), "tiers": ()}),
    Decides(
        "advantage.scale_rewards",
        {**dict.fromkeys(("group", "batch"), ("advantage.std_floor",)), "none": ()},
    ),
)
"""All that there is to know; a setting that is named nowhere here always acts. One of them is
`cold_start.references`: a study takes it for estimators that watch a run and have a cold start."""

_OFF: dict[str, Any] = {
    "selection.explore": "off",
    "selection.eta": 0.0,
    "advantage.shape_alone": False,
    "easy.use": False,
    "hard.use": False,
}
"""Values that say of what does nothing that it is off: this is true, and may be written."""


def idle(config: Any) -> dict[str, str]:
    """The settings that do nothing in this configuration, each with what would let it act."""
    return dict(_idle(*(attrgetter(decides.name)(config) for decides in TABLE)))


@functools.lru_cache(maxsize=256, typed=True)
def _idle(*values: Any) -> dict[str, str]:
    """The same by the values of what the table names: it is asked for with every setting."""
    found: dict[str, str] = {}
    for decides, now in zip(TABLE, values, strict=True):
        acting = decides.reads.get(decides.kind(now))
        if acting is None:  # an estimator of one's own
            continue
        for name in {name for names in decides.reads.values() for name in names} - {*acting}:
            with_it = [str(key).lower() for key, names in decides.reads.items() if name in names]
            words = decides.words or " or ".join(with_it)
            shown = str(now).lower() if isinstance(now, bool) else now
            found.setdefault(name, f"it acts with {decides.name} {words}, not with {shown}")
    return found


def check_written(config: Any, written: Mapping[str, Any]) -> None:
    """Refuse what somebody wrote (nested names) and nothing reads."""
    nothing = idle(config)
    for name, value in flat(written):
        if name in nothing and value != _OFF.get(name, ...):
            fix = f"does nothing here: {nothing[name]}; leave it out"
            raise InvalidInput(name, value, fix)
