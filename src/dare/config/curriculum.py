"""All of the curriculum's settings, and the presets."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

import yaml

from dare.config.estimation import BufferConfig, ColdStartConfig, EstimatorConfig, ReplayConfig
from dare.config.nested import build, flat, merge, nest
from dare.config.reads import check_written, idle
from dare.config.treatment import (
    AdvantageConfig,
    EasyConfig,
    HardConfig,
    SelectionConfig,
    TierConfig,
)
from dare.errors import InvalidInput, require, suggest


@dataclass(frozen=True)
class CurriculumConfig:
    """All of the curriculum's settings. Defaults are the preset `dare`."""

    seed: int = 0
    """Every draw is keyed by (seed, step, purpose)."""
    rollout_budget: int = 512
    """R: rollouts a step trains on, filled exactly; at most so many with `prompts_per_step`."""
    prompts_per_step: int = 0
    """B: prompts a step draws, each with its whole group, so that its rollouts vary (the paper).
    R still bounds them. 0 draws as many as fill R."""
    group_sizes: Literal["tiers", "value"] = "tiers"
    """Who decides how many rollouts a prompt gets: its tier, or (`value`) the chance that its group
    is mixed: of R, each next rollout goes where that chance grows most."""
    smallest_group: int = 4
    """Rollouts that `value` gives a drawn prompt at least ..."""
    largest_group: int = 16
    """... and at most. On average a prompt has `medium.group_size`."""
    fresh_share: float = 1.0
    """sigma: share of them generated now; the rest is replayed from the buffer (1: none)."""
    max_tokens: int = 3072
    """Full token budget of a response."""
    tiers: bool = False
    """False gives every prompt the medium treatment (the baselines) and calls it medium;
    `easy.use` and `hard.use` switch the two treatments one by one."""
    buffer: BufferConfig = field(default_factory=BufferConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    cold_start: ColdStartConfig = field(default_factory=ColdStartConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    easy: EasyConfig = field(default_factory=EasyConfig)
    medium: TierConfig = field(default_factory=TierConfig)
    hard: HardConfig = field(default_factory=HardConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)

    def __post_init__(self) -> None:
        require(self.seed >= 0, "seed", self.seed, "must not be negative")
        for tier in ("easy", "medium", "hard"):
            getattr(self, tier).check(tier)
        easy, hard = self.easy.below, self.hard.above
        fix = f"needs 0 <= easy.below < hard.above <= 1; hard.above is {hard}"
        require(0 <= easy < hard <= 1, "easy.below", easy, fix)
        for name, weight in (
            ("easy.length_penalty", self.easy.length_penalty),
            ("hard.length_bonus", self.hard.length_bonus),
        ):
            fix = "must be in [0, 1), or a wrong answer could outrank a right one"
            require(0 <= weight < 1, name, weight, fix)
        plain, size = self.hard.plain, self.hard.group_size
        fix = f"must be between 2 and hard.group_size ({size})"
        require(2 <= plain <= size, "hard.plain", plain, fix)
        sigma = self.fresh_share
        require(0 < sigma <= 1, "fresh_share", sigma, "must be in (0, 1]")
        sizes = {"medium": self.medium.group_size}
        for name in ("easy", "hard"):
            if self.tiers and getattr(self, name).use:
                sizes[name] = getattr(self, name).group_size
        tier = max(sizes, key=lambda name: sizes[name])
        largest, fresh = sizes[tier], self.rollout_budget * sigma
        smaller = "num_generations" if tier == "medium" else f"{tier}.group_size"
        fix = (
            f"R x fresh_share ({sigma}) must hold at least one group of {largest}, that of {tier} "
            f"prompts; R from {math.ceil(largest / sigma)} on does, or a smaller {smaller}"
            + (", or more that is fresh" if sigma < 1 else "")
        )
        require(fresh >= largest, "rollout_budget", self.rollout_budget, fix)
        prompts = self.prompts_per_step
        require(prompts >= 0, "prompts_per_step", prompts, "must not be negative; 0 fills R")
        least, most, usual = self.smallest_group, self.largest_group, self.medium.group_size
        fix = f"needs 2 <= smallest_group <= medium.group_size ({usual}) <= largest_group"
        fits = least <= usual <= most or self.group_sizes != "value"
        require(2 <= least <= most and fits, "smallest_group", (least, most), fix)
        require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "must be at least 1")

    @property
    def replays(self) -> bool:
        """Whether rollouts are trained on again later: their behaviour log-probs must be kept."""
        return self.fresh_share < 1

    @property
    def helps(self) -> bool:
        """Whether some rollouts are sampled with help. Where they are trained on without it, their
        behaviour log-probs are not those that the update computes."""
        hard = self.hard
        return self.tiers and hard.use and hard.extra != "plain" and hard.plain < hard.group_size

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CurriculumConfig:
        """From nested or dotted keys; an unknown key is an error that names the nearest one, and so
        is one that does nothing beside the others. Where every section is there, as `to_dict` has
        them, nobody wrote each: what does nothing is kept."""
        written = nest(values, once=True)
        whole = set(cls.__dataclass_fields__) <= set(written)
        return cls._built(written, {} if whole else written)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> CurriculumConfig:
        """A shipped preset (see `preset_names`), with changes as keywords or dotted keys."""
        return cls._built(load_preset(name), nest(overrides))

    def replace(self, values: Mapping[str, Any]) -> CurriculumConfig:
        """A copy with these nested or dotted keys changed."""
        return self._built(self.to_dict(), nest(values, once=True))

    @classmethod
    def _built(cls, base: Mapping[str, Any], written: Mapping[str, Any]) -> CurriculumConfig:
        built = build(cls, merge(base, written), "")
        assert isinstance(built, cls)
        check_written(built, written)
        return built

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, ready for YAML or JSON."""
        return dataclasses.asdict(self)


def acting_changes(preset: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Of changes to a preset, those that do something: a run that was begun when others could be
    written goes on without them."""
    written = nest(changes)
    whole = merge(CurriculumConfig.preset(preset).to_dict(), written)
    nothing = idle(CurriculumConfig.from_dict(whole))
    return {name: value for name, value in flat(written) if name not in nothing}


def preset_names() -> list[str]:
    """Names of the shipped presets."""
    folder = resources.files("dare").joinpath("presets")
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_preset(name: str) -> dict[str, Any]:
    """The keys of a preset that differ from the defaults."""
    if name not in preset_names():
        raise InvalidInput("preset", name, suggest(name, preset_names()))
    return copy.deepcopy(_shipped(name))


@functools.cache
def _shipped(name: str) -> dict[str, Any]:
    text = resources.files("dare").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text) or {}
