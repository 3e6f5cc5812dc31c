"""Settings of the curriculum: one documented field per knob, presets as YAML (METHOD, top).

This module imports no model library: the curriculum reads it, and the trainer's own
configuration builds on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from dare.errors import InvalidInput, require, suggest

ESTIMATORS = (
    "snis",
    "previous-fr",
    "current-fr",
    "posterior",
    "entropy",
    "judge",
    "teacher",
    "uniform",
)
"""Names of the shipped estimators."""


@dataclass(frozen=True)
class BufferConfig:
    """How many rollouts are remembered (METHOD 2)."""

    rollouts_per_prompt: int = 32
    """K: at most this many rollouts of a prompt; the oldest leaves first."""
    groups: int = 4096
    """C: at most this many groups over all prompts."""

    def __post_init__(self) -> None:
        k, c = self.rollouts_per_prompt, self.groups
        require(k >= 2, "buffer.rollouts_per_prompt", k, "K must be at least 2")
        require(c >= 1, "buffer.groups", c, "C must be at least 1")


@dataclass(frozen=True)
class EstimatorConfig:
    """How the difficulty of each prompt is estimated (METHOD 4 and 9)."""

    name: str = "snis"
    """Which estimator: snis, previous-fr, current-fr, posterior, entropy, judge, teacher, uniform,
    or a class of your own as `module:Class`."""
    clip: float = 4.0
    """c: log-ratios are clipped to [-c, c] before they become weights."""
    fallback: Literal["shrink", "threshold"] = "shrink"
    """What happens when the weights collapse: shrink toward the prior by evidence, or switch to
    the cold start below `ess_threshold` (the paper)."""
    ess_threshold: float = 3.0
    """tau_ESS of the `threshold` fallback."""
    forgetting: float | Literal["auto"] = "auto"
    """How fast old evidence fades: a weight W becomes W / (1 + forgetting W dt) after dt steps.
    `auto` picks it online by how well it predicts each new group; 0 never forgets."""
    prior_strength: float = 0.1
    """Rollouts that a cold-start estimate counts for once the prompt has been seen."""
    refresh_share: float = 0.25
    """Tokens spent on rescoring buffered rollouts, as a share of the step's own tokens."""
    posterior_discount: float = 0.5
    """lambda of the discounted Beta posterior (MoPPS)."""
    candidates: int = 0
    """Prompts measured per refresh by `entropy` and `judge`; 0 measures all."""
    references: int = 256
    """Prompts rolled out per step by `teacher`."""
    teacher: str | None = None
    """File of the head of `teacher`, written by `dare teacher fit`; null compares prompts by the
    similarity of their embeddings."""
    target_low: float = 0.4
    """`current-fr` trains on prompts whose fresh failure rate is at least this ..."""
    target_high: float = 0.6
    """... and at most this."""
    max_probes: int = 16
    """`current-fr` refills at most this many times a step."""

    def __post_init__(self) -> None:
        fix = f"{suggest(self.name, ESTIMATORS)}; a class of your own is written as module:Class"
        require(self.name in ESTIMATORS or ":" in self.name, "estimator.name", self.name, fix)
        require(self.clip >= 0, "estimator.clip", self.clip, "c must not be negative")
        ess = self.ess_threshold
        require(ess >= 1, "estimator.ess_threshold", ess, "an ESS is never below 1")
        if self.forgetting != "auto":
            fade = float(self.forgetting)
            require(fade >= 0, "estimator.forgetting", fade, "must be 'auto' or at least 0")
        strength = self.prior_strength
        require(strength > 0, "estimator.prior_strength", strength, "must be positive")
        share = self.refresh_share
        require(share >= 0, "estimator.refresh_share", share, "must not be negative")
        discount = self.posterior_discount
        fix = "must be in [0, 1]"
        require(0 <= discount <= 1, "estimator.posterior_discount", discount, fix)
        require(self.candidates >= 0, "estimator.candidates", self.candidates, "0 means all")
        require(self.references >= 2, "estimator.references", self.references, "needs at least 2")
        low, high = self.target_low, self.target_high
        fix = "needs 0 <= target_low < target_high <= 1"
        require(0 <= low < high <= 1, "estimator.target_low", (low, high), fix)
        require(self.max_probes >= 1, "estimator.max_probes", self.max_probes, "needs at least 1")


@dataclass(frozen=True)
class ColdStartConfig:
    """Difficulty of prompts never seen (METHOD 3)."""

    references: int = 256
    """N: prompts rolled out once before the first step; 0 starts every prompt at 0.5."""
    group_size: int = 8
    """Rollouts of each reference prompt."""
    temperature: float | Literal["auto", "paper"] = "auto"
    """Softmax temperature on the dot products; `paper` is sqrt(h), `auto` minimises the
    leave-one-out error on the reference set."""

    def __post_init__(self) -> None:
        n, g = self.references, self.group_size
        require(n == 0 or n >= 2, "cold_start.references", n, "use 0 or at least 2")
        require(g >= 2, "cold_start.group_size", g, "a group has at least 2 rollouts")
        if not isinstance(self.temperature, str):
            fix = "must be 'auto', 'paper' or positive"
            require(self.temperature > 0, "cold_start.temperature", self.temperature, fix)


@dataclass(frozen=True)
class ForesightConfig:
    """Difficulty of prompts never seen, from their reference solutions; needs a solution column."""

    use: bool = True
    """Read the solutions where the data has them and the estimator is `snis` with `shrink`."""
    share: float = 3.0
    """Tokens of solutions read again for each token of the refresh budget, on top of it."""
    memory: int = 1024
    """Groups that the map from likelihood to difficulty is learnt from, the latest ones."""
    most_strength: float = 32.0
    """Rollouts that a prediction may count for at most, however right it was so far."""

    def __post_init__(self) -> None:
        share, memory, most = self.share, self.memory, self.most_strength
        require(share >= 0, "foresight.share", share, "must not be negative")
        require(memory >= 32, "foresight.memory", memory, "needs at least 32 groups")
        require(most >= 0, "foresight.most_strength", most, "must not be negative")


@dataclass(frozen=True)
class SelectionConfig:
    """Which prompts a step draws (METHOD 5)."""

    name: Literal["beta", "softmax", "thompson", "uniform"] = "beta"
    """The rule."""
    kappa: float = 16.0
    """Concentration of the Beta density around difficulty 0.5."""
    eta: float = 0.2
    """Share of the draw that is uniform over the tiers present."""
    temperature: float = 1.0
    """tau of `softmax`."""
    target: float = 0.5
    """Difficulty that `thompson` looks for."""
    explore_start: float = 0.8
    """Share of the draw given to unseen prompts at the most, at the start ..."""
    explore_floor: float = 0.1
    """... and never less than this while any is left."""
    explore: Literal["supply", "coverage", "fixed", "off"] = "supply"
    """What the share falls with: the supply of seen prompts worth drawing, or plain coverage.
    `fixed` keeps `explore_start` (MoPPS), `off` draws seen and unseen alike."""
    rest: float = 8.0
    """Steps that a seen prompt should rest between two draws, on average; `supply` counts how
    many prompts a step that leaves."""

    def __post_init__(self) -> None:
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

    std_floor: float = 1e-6
    """Added to the group's standard deviation. In a group of equal raw rewards it decides how
    much the length terms weigh: far below lambda they count fully, far above not at all."""

    def __post_init__(self) -> None:
        floor = self.std_floor
        require(floor > 0, "advantage.std_floor", floor, "must be positive")


@dataclass(frozen=True)
class CurriculumConfig:
    """All of the curriculum's settings. Defaults are the preset `dare`."""

    seed: int = 0
    """Every draw is keyed by (seed, step, purpose)."""
    rollout_budget: int = 512
    """R: rollouts a step trains on, filled exactly."""
    fresh_share: float = 1.0
    """sigma: share of them generated now; the rest is replayed from the buffer."""
    max_tokens: int = 3072
    """Full token budget of a response."""
    tiers: bool = True
    """False gives every prompt the medium treatment (the baselines) and calls it medium;
    `easy.use` and `hard.use` switch the two treatments one by one."""
    buffer: BufferConfig = field(default_factory=BufferConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    cold_start: ColdStartConfig = field(default_factory=ColdStartConfig)
    foresight: ForesightConfig = field(default_factory=ForesightConfig)
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
        treated = [tier for tier in (self.easy, self.hard) if self.tiers and tier.use]
        largest = max(tier.group_size for tier in (self.medium, *treated))
        fresh = self.rollout_budget * sigma
        fix = f"R x fresh_share must hold at least one group of {largest}"
        require(fresh >= largest, "rollout_budget", self.rollout_budget, fix)
        require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "must be at least 1")

    @property
    def needs_scores(self) -> bool:
        """Whether anything reads behaviour log-probs. Without importance weights, replay or help
        every rollout is trained on once, by the policy that sampled it: the ratio is 1."""
        replays = self.fresh_share < 1 or self.estimator.name in ("current-fr", "teacher")
        own = ":" in self.estimator.name  # an estimator that we do not know may read them
        return self.tiers or replays or own or self.estimator.name == "snis"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CurriculumConfig:
        """From nested or dotted keys; an unknown key is an error that names the nearest one."""
        built = _build(cls, nest(values), "")
        assert isinstance(built, cls)
        return built

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> CurriculumConfig:
        """A shipped preset (see `preset_names`), with changes as keywords or dotted keys."""
        return cls.from_dict(_merge(load_preset(name), nest(overrides)))

    def replace(self, values: Mapping[str, Any]) -> CurriculumConfig:
        """A copy with these nested or dotted keys changed."""
        return self.from_dict(_merge(self.to_dict(), nest(values)))

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, ready for YAML or JSON."""
        return dataclasses.asdict(self)


def preset_names() -> list[str]:
    """Names of the shipped presets."""
    folder = resources.files("dare").joinpath("presets")
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_preset(name: str) -> dict[str, Any]:
    """The keys of a preset that differ from the defaults."""
    if name not in preset_names():
        raise InvalidInput("preset", name, suggest(name, preset_names()))
    text = resources.files("dare").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text) or {}


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """{'easy.below': 0.2} becomes {'easy': {'below': 0.2}}."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        head, _, rest = str(key).partition(".")
        inner = nest({rest: value}) if rest else value
        if isinstance(inner, Mapping):
            before = nested.get(head, {})
            if not isinstance(before, Mapping):
                raise InvalidInput(str(key), value, f"{head!r} is given as a plain value too")
            inner = _merge(before, nest(inner))
        nested[head] = inner
    return nested


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _build(kind: type[Any], values: Any, path: str) -> Any:
    if not isinstance(values, Mapping):
        raise InvalidInput(path or "config", values, "must be a mapping of settings")
    hints = get_type_hints(kind)
    known = [item.name for item in dataclasses.fields(kind)]
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in known:
            raise InvalidInput(where, value, f"is no setting; {suggest(str(key), known)}")
        if dataclasses.is_dataclass(hints[key]):
            arguments[key] = _build(hints[key], value, where)
        else:
            arguments[key] = _typed(hints[key], value, where)
    return kind(**arguments)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """The value as its field's type: a YAML '1' fits a float, a 1.0 an int, 'x' neither."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        fix = suggest(str(value), [str(choice) for choice in choices])
        require(value in choices, where, value, fix)
        return value
    if hint is bool:
        require(isinstance(value, bool), where, value, "must be true or false")
        return value
    if hint in (str, str | None):
        fix = "must be text" if hint is str else "must be text or null"
        require(isinstance(value, str) or (value is None and hint is not str), where, value, fix)
        return value
    if hint in (int, float):
        number = value
        if isinstance(value, str):  # YAML 1.1 reads 1e-4 as text
            try:
                number = float(value)
            except ValueError:
                raise InvalidInput(where, value, "must be a number") from None
        whole = hint is float or (isinstance(number, (int, float)) and float(number).is_integer())
        plain = isinstance(number, (int, float)) and not isinstance(number, bool)
        kind = "a whole number" if hint is int else "a number"
        require(plain and whole and number == number, where, value, f"must be {kind}")
        return hint(number)
    options = get_args(hint)  # a number or one of a few words
    words = [option for option in options if get_origin(option) is Literal]
    if words and isinstance(value, str) and value in get_args(words[0]):
        return value
    try:
        return _typed(next(option for option in options if option not in words), value, where)
    except InvalidInput:
        named = ", ".join(repr(word) for word in get_args(words[0]))
        raise InvalidInput(where, value, f"must be a number or one of {named}") from None
