"""Settings of replay: which groups of the buffer a step may train on again."""

from __future__ import annotations

from dataclasses import dataclass

from dare.errors import require


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
