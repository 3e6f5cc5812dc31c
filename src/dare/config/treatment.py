"""Settings of what is drawn and how it is trained on: selection, tiers, advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dare.errors import require


@dataclass(frozen=True)
class SelectionConfig:
    """Which prompts a step draws (METHOD 5)."""

    name: Literal["value", "beta", "softmax", "thompson", "uniform"] = "value"
    """The rule. `value` draws by the chance that a group is mixed, per expected token, and knows no
    share of unseen prompts."""
    sharpness: float = 16.0
    """`value` draws in proportion to that chance raised to this; 0 draws uniformly."""
    per_token: float = 1.0
    """Power of the expected tokens of a response that `value` divides by; 0 ignores them."""
    kappa: float = 16.0
    """Concentration of the density of `beta` around difficulty 0.5."""
    eta: float = 0.05
    """Share of the draw that is uniform: over the tiers present, or over all prompts (`value`)."""
    temperature: float = 1.0
    """tau of `softmax`."""
    target: float = 0.5
    """Difficulty that `thompson` looks for."""
    explore_start: float = 0.8
    """Share of the draw given to unseen prompts at the most, at the start ..."""
    explore_floor: float = 0.1
    """... and never less than this while any is left."""
    explore: Literal["supply", "coverage", "release", "fixed", "off"] = "supply"
    """What the share falls with: the supply of seen prompts worth drawing, or plain coverage.
    `release` is 1 / (1 + (seen / prompts of a step)^2), the authors' code, without a floor.
    `fixed` keeps `explore_start` (MoPPS), `off` draws seen and unseen alike (the paper)."""
    rest: float = 4.0
    """Steps that a drawn prompt rests under `value`; fewer where prompts are few."""

    def __post_init__(self) -> None:
        sharp, price = self.sharpness, self.per_token
        require(0 <= sharp <= 1e3, "selection.sharpness", sharp, "must be in [0, 1000]")
        require(0 <= price <= 10, "selection.per_token", price, "must be in [0, 10]")
        kappa = self.kappa
        require(0 <= kappa < float("inf"), "selection.kappa", kappa, "must be finite and >= 0")
        require(0 <= self.eta <= 1, "selection.eta", self.eta, "is a share, in [0, 1]")
        require(self.temperature > 0, "selection.temperature", self.temperature, "must be positive")
        require(0 <= self.target <= 1, "selection.target", self.target, "is a failure rate")
        require(self.rest >= 1, "selection.rest", self.rest, "must be at least 1")
        low, high = self.explore_floor, self.explore_start
        fix = "needs 0 <= explore_floor <= explore_start <= 1"
        require(0 <= low <= high <= 1, "selection.explore_floor", (low, high), fix)


@dataclass(frozen=True)
class TierConfig:
    """What every tier has (METHOD 6)."""

    group_size: int = 8
    """G: rollouts of a prompt of this tier."""
    max_tokens_ratio: float = 1.0
    """Token budget as a share of the full one."""
    clip_low: float = 0.2
    """eps-: the ratio is clipped at 1 - this."""
    clip_high: float = 0.2
    """eps+: and at 1 + this."""

    def check(self, tier: str) -> None:
        """Raise on values that cannot work."""
        g, share = self.group_size, self.max_tokens_ratio
        require(g >= 2, f"{tier}.group_size", g, "a group has at least 2 rollouts")
        require(0 < share <= 1, f"{tier}.max_tokens_ratio", share, "must be in (0, 1]")
        require(0 < self.clip_low < 1, f"{tier}.clip_low", self.clip_low, "must be in (0, 1)")
        require(self.clip_high > 0, f"{tier}.clip_high", self.clip_high, "must be positive")


@dataclass(frozen=True)
class EasyConfig(TierConfig):
    """Easy prompts: fewer, shorter rollouts; short right answers are preferred."""

    use: bool = True
    """False gives easy prompts the medium treatment; they are still counted as easy."""
    group_size: int = 4
    max_tokens_ratio: float = 0.5
    clip_high: float = 0.6
    below: float = 0.3
    """Difficulty under which a prompt is easy."""
    length_penalty: float = 1e-4
    """lambda_easy."""


@dataclass(frozen=True)
class HardConfig(TierConfig):
    """Hard prompts: more rollouts, part of them with help; long wrong answers get a bonus."""

    use: bool = True
    """False gives hard prompts the medium treatment; they are still counted as hard."""
    group_size: int = 16
    above: float = 0.8
    """Difficulty over which a prompt is hard."""
    plain: int = 8
    """Rollouts of the group that are sampled from the bare prompt."""
    extra: Literal["hint-or-think", "hint-or-plain", "think", "plain"] = "hint-or-think"
    """How the rest are sampled: hinted where the buffer has a success, otherwise ..."""
    length_bonus: float = 1e-4
    """lambda_hard."""


@dataclass(frozen=True)
class AdvantageConfig:
    """How rewards become advantages inside a group (METHOD 6)."""

    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What a reward's distance from its group's mean is divided by: the standard deviation of the
    `group`, that of all rewards of the `batch`, or nothing (`none`)."""
    std_floor: float = 1e-6
    """Added to that standard deviation."""
    shape_alone: bool = False
    """True lets the length terms act in groups whose raw rewards are all equal. Divided by the
    group's own deviation they then count as much as right against wrong, unless `std_floor` is
    far above lambda. False gives such groups advantage 0."""
    thin_below: float = 0.0
    """Rollouts whose advantage is smaller than this times the usual size (1 where a group's
    deviation is 1) are trained on with chance |advantage| / that and weigh the inverse: less to
    train on, the same gradient on average. 0: all are."""

    def __post_init__(self) -> None:
        floor, thin = self.std_floor, self.thin_below
        require(
            0 <= thin <= 10, "advantage.thin_below", thin, "must be in [0, 10]; 0 trains on all"
        )
        require(floor > 0, "advantage.std_floor", floor, "must be positive")
