"""Settings of memory and estimate: buffer, replay, estimator, cold start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dare.config.reads import ESTIMATORS
from dare.errors import require, suggest

_EVERYTHING = 2**62  # tokens; more than any buffer holds


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
class ReplayConfig:
    """Which groups are replayed (METHOD 8); how many rollouts they fill is `fresh_share`.

    Where too few groups qualify, the step generates more instead.
    """

    max_age: int = 0
    """Steps after which a group is too old to be replayed; 0 sets no limit."""
    times: int = 0
    """Replays of one group at the most; 0 sets no limit."""
    priority: float = 0.0
    """A group is drawn with a chance proportional to its mean absolute advantage to this power:
    0 draws uniformly, 1 in proportion, more favours groups that are half right and half wrong."""

    def __post_init__(self) -> None:
        require(self.max_age >= 0, "replay.max_age", self.max_age, "0 sets no limit")
        require(self.times >= 0, "replay.times", self.times, "0 sets no limit")
        power = self.priority
        require(0 <= power < float("inf"), "replay.priority", power, "must be finite and >= 0")


@dataclass(frozen=True)
class EstimatorConfig:
    """How the difficulty of each prompt is estimated (METHOD 4 and 9)."""

    name: str = "dare"
    """Which estimator: dare, dare-rescored, paper, previous-fr, current-fr, dynamic, greso,
    posterior, entropy, judge, teacher, uniform, or a class of your own as `module:Class`."""
    clip: float = 4.0
    """c: log-ratios are clipped to [-c, c] before they become weights."""
    ess_threshold: float = 3.0
    """tau_ESS: `paper` believes its weights from this effective sample size on."""
    below_threshold: Literal["prior", "raw"] = "prior"
    """What `paper` takes below it: the cold start (the paper's text), or the plain failure rate of
    the buffered rollouts (the authors' code)."""
    refresh_share: float | Literal["all"] = 0.10
    """Tokens spent on reading prompts and solutions again (`dare`) or on rescoring buffered
    rollouts (`paper`) or both (`dare-rescored`), as a share of the step's own tokens; `all`
    rescores the whole buffer after every step."""
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
    """`current-fr`, `dynamic` and `greso` roll out at most this many batches of prompts a step."""
    probe_factor: float = 1.0
    """`dynamic` and `greso`: prompts of such a batch at the most, and of a step's first one, as a
    multiple of the groups that the step trains on."""
    refill_margin: float = 1.0
    """`dynamic` and `greso`: a refill has the groups that are missing over the share of groups that
    were mixed in the batch before, times this."""
    greso_target: float = 0.25
    """`greso`: share of groups without variance that exploration aims at, one part all right to two
    parts all wrong."""
    greso_start: float = 0.5
    """`greso`: both exploration probabilities at the start."""
    greso_step: float = 0.01
    """`greso`: what they change by after a step."""

    def __post_init__(self) -> None:
        fix = f"{suggest(self.name, ESTIMATORS)}; a class of your own is written as module:Class"
        require(self.name in ESTIMATORS or ":" in self.name, "estimator.name", self.name, fix)
        require(self.clip >= 0, "estimator.clip", self.clip, "c must not be negative")
        ess = self.ess_threshold
        require(ess >= 1, "estimator.ess_threshold", ess, "an ESS is never below 1")
        share = self.refresh_share
        if share != "all":
            fix = "must be 'all' or at least 0"
            require(float(share) >= 0, "estimator.refresh_share", share, fix)
        discount = self.posterior_discount
        fix = "must be in [0, 1]"
        require(0 <= discount <= 1, "estimator.posterior_discount", discount, fix)
        require(self.candidates >= 0, "estimator.candidates", self.candidates, "0 means all")
        require(self.references >= 2, "estimator.references", self.references, "needs at least 2")
        low, high = self.target_low, self.target_high
        fix = "needs 0 <= target_low < target_high <= 1"
        require(0 <= low < high <= 1, "estimator.target_low", (low, high), fix)
        require(self.max_probes >= 1, "estimator.max_probes", self.max_probes, "needs at least 1")
        factor, margin = self.probe_factor, self.refill_margin
        require(factor >= 1, "estimator.probe_factor", factor, "must be at least 1")
        require(margin >= 1, "estimator.refill_margin", margin, "must be at least 1")
        for name in ("greso_target", "greso_start", "greso_step"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"estimator.{name}", value, "must be in [0, 1]")

    def refresh_budget(self, step_tokens: int) -> int:
        """Tokens that may be read after a step of so many."""
        if self.refresh_share == "all":
            return _EVERYTHING
        return int(float(self.refresh_share) * step_tokens)


@dataclass(frozen=True)
class ColdStartConfig:
    """Difficulty of prompts never seen, for estimators without an answer of their own (METHOD 3).
    `dare` has one."""

    references: int = 256
    """N: prompts rolled out first, drawn uniformly; 0 starts every prompt at 0.5."""
    train: bool = True
    """Train on them: they are the prompts of the first steps, and cost nothing beside. False rolls
    them out once before the first step, for the estimate alone (the paper)."""
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
