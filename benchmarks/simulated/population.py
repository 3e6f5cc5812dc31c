"""Simulated prompts: how hard they are and which skills they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dare.curriculum.arrays import Array, keyed_rng
from dare.errors import require

# Initial log-odds of success: share, mean and deviation of two normals. Fitted by maximum
# likelihood to 23,236 DeepScaleR problems, 128 rollouts each of Qwen2.5-Math-7B: 4 % always and
# 20 % never solved in 128, mean pass rate 0.43.
LOG_ODDS = ((0.366, 1.07, 1.80), (0.634, -3.02, 5.06))
# Hardness between the knots of the first and last band asks for a mix of the two nearest.
FIRST_KNOT, LAST_KNOT = -4.0, 8.0
UNITS = 16  # longest response, in units of tokens; the shortest has 2


@dataclass(frozen=True)
class World:
    """Assumptions of a simulation: one field per dial."""

    prompts: int
    """Training prompts."""
    skills: int = 32
    """Topics; each prompt has one."""
    bands: int = 6
    """Every topic has this many level skills besides its general one."""
    transfer: float = 0.5
    """Share of a success that rests on the topic's general skill; the rest is learnt only from
    prompts of about the same hardness."""
    spread: float = 0.67
    """Deviation of the log of how strongly a prompt follows its skills (mean 1): in 1,208 prompts
    over 45 epochs of GRPO the log-odds rose by 0.96 on average with a deviation of 0.75."""
    seed: int = 0
    """Population and draws."""
    heldout: int = 4096
    """Further prompts of the same population, never trained on: the accuracy is theirs."""
    rate: float = 1.2
    """Skill gained per unit of gradient (SGD)."""
    length_rate: float = 0.3
    """The same for verbosity."""
    ceiling: float | None = None
    """Skill that cannot be exceeded: steps up shrink linearly toward it."""
    hint_boost: float = 1.5
    """Log-odds that a hint adds."""
    think_boost: float = 0.3
    """Log-odds that a request to think longer adds."""
    hint_training: Literal["original", "hinted"] = "original"
    """Under which prompt a hinted rollout is trained on (METHOD 7)."""
    drift: float = 0.1
    """Deviation per update of the policy's style: it moves likelihood ratios and nothing else."""
    length: float = 3.7
    """Median length of a response at hardness 0, in units."""
    length_slope: float = 0.08
    """Gain of the log-length per unit of hardness."""
    length_spread: float = 0.5
    """Deviation of the log-length."""
    max_tokens: int = 3072
    """Token budget that `UNITS` units stand for."""

    def __post_init__(self) -> None:
        for name in ("prompts", "skills", "heldout", "length_spread", "max_tokens"):
            value = getattr(self, name)
            require(value > 0, name, value, "must be positive")
        require(self.bands >= 2, "bands", self.bands, "needs at least 2")
        require(0 <= self.transfer <= 1, "transfer", self.transfer, "is a share, in [0, 1]")
        require(self.drift >= 0, "drift", self.drift, "must not be negative")


class Population:
    """Hardness, topic and slope of each prompt: 10 bytes; the mix of skills is computed."""

    def __init__(self, world: World) -> None:
        self.world = world
        count = world.prompts + world.heldout
        rng = keyed_rng(world.seed, 0, "population")
        weight, mean, spread = np.array(LOG_ODDS, np.float32).T
        part = (rng.random(count, np.float32) >= weight[0]).astype(np.int8)
        self.hardness = rng.standard_normal(count, np.float32)
        self.hardness *= -spread[part]
        self.hardness -= mean[part]
        self.topic = rng.integers(0, world.skills, count, dtype=np.int16)
        log_slope = rng.standard_normal(count, np.float32) * np.float32(world.spread)
        self.slope = np.exp(log_slope - np.float32(world.spread**2 / 2))

    @property
    def size(self) -> int:
        """Number of skills: a general one and the bands, a topic."""
        return self.world.skills * (1 + self.world.bands)

    def mix(self, rows: Array) -> tuple[Array, Array]:
        """Skills that these prompts ask for, and how strongly: two R x 3 arrays.

        The topic's general skill has the share `transfer` of the prompt's slope; the two level
        skills whose knots enclose the hardness divide the rest by nearness.
        """
        world = self.world
        scale = (world.bands - 1) / (LAST_KNOT - FIRST_KNOT)
        place = np.clip((self.hardness[rows] - FIRST_KNOT) * scale, 0.0, world.bands - 1.0)
        low = np.minimum(place.astype(np.int64), world.bands - 2)
        upper = (place - low).astype(np.float64)
        first = self.topic[rows].astype(np.int64) * (1 + world.bands)
        index = np.stack([first, first + 1 + low, first + 2 + low], axis=-1)
        local = 1.0 - world.transfer
        share = [np.full(len(upper), world.transfer), local * (1.0 - upper), local * upper]
        return index, np.stack(share, axis=-1) * self.slope[rows][:, None]

    def embeddings(self, noise: float, dimension: int) -> Array:
        """Unit features that know the topic, and the hardness up to `noise` (training rows)."""
        world, count = self.world, self.world.prompts
        rng = keyed_rng(world.seed, 0, "embeddings")
        blurred = self.hardness[:count] + noise * rng.standard_normal(count, np.float32)
        # Random cosines: a dot product of two rows is a kernel of the difference in hardness.
        wave = rng.normal(size=dimension).astype(np.float32) / 4.0
        phase = rng.uniform(0, 2 * np.pi, dimension).astype(np.float32)
        place = rng.standard_normal((world.skills, dimension), np.float32) / 4.0
        features: Array = np.cos(blurred[:, None] * wave + phase) + place[self.topic[:count]]
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        return features
