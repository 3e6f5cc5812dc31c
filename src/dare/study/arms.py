"""The lines of a study: a name, a preset and what is changed in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dare.config import load_preset
from dare.errors import InvalidInput, require
from dare.training.recipe import change

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]*")


@dataclass(frozen=True)
class Arm:
    """One method of a study; `options` are `--field value` words as `dare train` takes them."""

    name: str
    preset: str
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fix = "becomes a folder: use letters, digits and . _ + = , - and begin with a letter"
        require(_NAME.fullmatch(self.name), "arm", self.name, fix)
        load_preset(self.preset)  # an unknown one is told the nearest, before anything runs

    @classmethod
    def parse(cls, text: str) -> Arm:
        """From 'NAME=PRESET --field value ...'."""
        name, equals, rest = text.partition("=")
        words = shlex.split(rest)
        if not equals or not words:
            fix = "is written as 'NAME=PRESET --field value ...', e.g. 'tiers=dare --tiers true'"
            raise InvalidInput("--arm", text, fix)
        return cls(name.strip(), words[0], tuple(words[1:]))

    def recipe(self, base: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The recipe of this arm's run with a seed."""
        return change({**base, "preset": self.preset}, [*self.options, "--seed", str(seed)])


def arms_of(presets: Sequence[str], texts: Iterable[str] = ()) -> list[Arm]:
    """An arm a preset, then those that are written out; no name twice."""
    arms = [Arm(preset, preset) for preset in presets] + [Arm.parse(text) for text in texts]
    names = [arm.name for arm in arms]
    for name in names:
        require(names.count(name) == 1, "arm", name, "is named twice; each needs its own name")
    require(arms, "--presets", list(presets), "name at least one preset or --arm")
    return arms
