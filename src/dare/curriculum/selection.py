"""Which prompts a step draws: Beta, softmax, Thompson or uniform (METHOD 5)."""

from __future__ import annotations

import numpy as np

from dare.config import SelectionConfig
from dare.curriculum.arrays import Array
from dare.curriculum.sampling import (
    accepted,
    distinct,
    finish_race,
    gumbel_top_k,
    lazy_race,
    members,
    top_k,
)
from dare.errors import InvalidInput

__all__ = [
    "Selector",
    "beta_log_weight",
    "clamp_difficulty",
    "explore_share",
    "gumbel_top_k",
    "interleave",
    "top_k",
]

_SUPPLY_SAMPLE = 8192
_REST = 8.0  # steps that a prompt should rest on average under `explore: supply`
_DENSE_BELOW = 8192  # prompts under which one pass over all is cheaper than being clever


def clamp_difficulty(difficulty: Array, rollouts: int) -> Array:
    """[1/(2(K+1)), 1 - 1/(2(K+1))]: K rollouts cannot tell an exact 0 or 1 from a rate near it."""
    margin = 1.0 / (2.0 * (rollouts + 1))
    return np.clip(difficulty, margin, 1.0 - margin)


def beta_log_weight(difficulty: Array, kappa: float) -> Array:
    """log Beta(d; 1 + kappa/2, 1 + kappa/2) up to a constant, 0 at its peak d = 0.5 (Eq. 6)."""
    with np.errstate(divide="ignore"):
        return (kappa / 2.0) * np.log(4.0 * difficulty * (1.0 - difficulty))


def explore_share(
    config: SelectionConfig,
    coverage: float,
    supply: float = 0.0,
    met: float = 0.0,
) -> float:
    """Share of the draw for unseen prompts, never below the floor.

    `supply` is the number of seen prompts worth drawing for each one that a step takes. With less
    than _REST of it the same few prompts would be drawn over and over: the share of unseen ones
    makes up for what is missing. `met` is the number of seen prompts for each one that a step
    takes.
    """
    if config.explore == "fixed":
        return config.explore_start
    if config.explore == "release":
        return 1.0 / (1.0 + met**2)
    if config.explore == "coverage":
        return max(config.explore_floor, config.explore_start * (1.0 - coverage))
    share = 1.0 - supply / _REST
    return min(config.explore_start, max(config.explore_floor, share))


def interleave(first: Array, second: Array, share: float, k: int, offset: float) -> Array:
    """k rows in order, a `share` of every stretch from `first`, the rest from `second`.

    Where one runs out the other takes its place. `offset` in [0, 1) shifts the pattern, so that
    short draws get their share on average.
    """
    size = min(k, len(first) + len(second))
    from_first = np.diff(np.floor(np.arange(size + 1) * share + offset)) > 0
    # Slots that a pool cannot fill go to the other one, the last slots first.
    surplus = int(from_first.sum()) - len(first)
    if surplus > 0:
        from_first[np.flatnonzero(from_first)[-surplus:]] = False
    surplus = int((~from_first).sum()) - len(second)
    if surplus > 0:
        from_first[np.flatnonzero(~from_first)[-surplus:]] = True
    drawn = np.empty(size, dtype=np.int64)
    taken = int(from_first.sum())
    drawn[from_first], drawn[~from_first] = first[:taken], second[: size - taken]
    return drawn


class Selector:
    """Draws prompts from their difficulty by the rule that the configuration names."""

    def __init__(
        self, config: SelectionConfig, rollouts_per_prompt: int, dense_below: int = _DENSE_BELOW
    ) -> None:
        self.config = config
        self._rollouts, self._dense_below = rollouts_per_prompt, dense_below

    def draw(
        self,
        signal_P: Array,
        tier_P: Array,
        seen_P: Array,
        k: int,
        rng: np.random.Generator,
        sample_P: Array | None = None,
        taken: int | None = None,
    ) -> Array:
        """k rows in drawn order, no row twice; unseen prompts get their explicit share.

        With both seen and unseen prompts there, the parts of the draw are kept apart: a share eta
        is uniform over the tiers of all prompts, so that every tier present gets its part wherever
        its prompts are; of the rest unseen prompts get enough to reach their own share.
        `signal_P` is the difficulty (`beta`), the score of `softmax`, the log of the worth
        (`value`, for which seen and unseen prompts are alike), or ignored (`uniform`);
        `sample_P` a draw from the posterior for `thompson`; `taken` how many of the k rows a step
        usually takes.
        """
        count = len(signal_P)
        if count == 0:
            raise InvalidInput("prompts", 0, "there is nothing to draw from")
        covered = int(np.count_nonzero(seen_P))
        if self.config.explore == "off" or self.config.name == "value" or covered in (0, count):
            eta, pools = self.config.eta, [np.ones(count, bool)]
            return self._draw_pools(signal_P, tier_P, eta, pools, k, rng, sample_P)[0]
        pools = [~seen_P, seen_P]
        unseen, seen = self._draw_pools(signal_P, tier_P, 0.0, pools, k, rng, sample_P)
        takes = max(taken or k, 1)
        supply = self._supply(signal_P, seen_P, covered, rng) / takes
        share = explore_share(self.config, covered / count, supply, covered / takes)
        if self.config.name != "beta" or self.config.eta == 0.0:
            return interleave(unseen, seen, share, k, float(rng.random()))
        eta = self.config.eta
        share = min(1.0, share / max(1.0 - eta, 1e-9))
        rest = interleave(unseen, seen, share, k, float(rng.random()))
        every = [np.ones(count, bool)]
        by_tier = self._draw_pools(signal_P, tier_P, 1.0, every, k, rng, sample_P)[0]
        return distinct(interleave(by_tier, rest, eta, 2 * k, float(rng.random())))[:k]

    def log_weight(self, signal_P: Array, tier_P: Array, eta: float) -> Array:
        """Log of the weight of each prompt, up to a constant; not for `thompson`.

        `beta` with eta > 0 is the mixture (1 - eta) Beta(kappa) + eta uniform over the tiers
        present, uniform inside a tier.
        """
        config = self.config
        if config.name == "uniform":
            return np.zeros(len(signal_P))
        if config.name == "softmax":
            return signal_P / config.temperature
        if config.name == "value":
            weight = np.exp(signal_P - signal_P.max())
            return np.log((1.0 - eta) / weight.sum() * weight + eta / len(weight) + 1e-300)
        log_beta = beta_log_weight(clamp_difficulty(signal_P, self._rollouts), config.kappa)
        if eta == 0.0:
            return log_beta
        weight = np.exp(log_beta - log_beta.max())
        size = np.bincount(tier_P, minlength=3)
        share = eta / np.count_nonzero(size) / np.maximum(size, 1)
        with np.errstate(divide="ignore"):
            return np.log(share[tier_P] + (1.0 - eta) / weight.sum() * weight)

    def probability(self, signal_P: Array, tier_P: Array) -> Array:
        """Chance of each prompt to be drawn first, were seen and unseen drawn alike."""
        if self.config.name == "thompson":
            return np.full(len(signal_P), 1.0 / len(signal_P))
        log_weight = self.log_weight(signal_P, tier_P, self.config.eta)
        weight = np.exp(log_weight - log_weight.max())
        return weight / weight.sum()

    def _supply(self, signal_P: Array, pool_P: Array, size: int, rng: np.random.Generator) -> float:
        """How many prompts at the peak of the Beta density those of a pool are worth.

        From a sample where there are very many: the share that follows from it needs no more.
        """
        if self.config.name != "beta":
            return float(size)
        large = size > _SUPPLY_SAMPLE
        rows = members(pool_P, _SUPPLY_SAMPLE, rng) if large else np.flatnonzero(pool_P)
        clamped = clamp_difficulty(signal_P[rows], self._rollouts)
        return size * float(np.exp(beta_log_weight(clamped, self.config.kappa)).mean())

    def _draw_pools(
        self,
        signal_P: Array,
        tier_P: Array,
        eta: float,
        pools: list[Array],
        k: int,
        rng: np.random.Generator,
        sample_P: Array | None,
    ) -> list[Array]:
        """Up to k rows of each pool, in drawn order."""
        config = self.config
        if config.name == "thompson":
            if sample_P is None:
                raise InvalidInput("sample", None, "thompson needs draws from a posterior")
            distance = -np.abs(sample_P - config.target)
            return [rows[top_k(distance[rows], k)] for rows in map(np.flatnonzero, pools)]
        if config.name in ("softmax", "value") or len(signal_P) < self._dense_below:
            drawn = [np.empty(0, np.int64) for _ in pools]
        else:
            tiers = [tier_P == tier for tier in range(3)] if eta else []
            present = [mask for mask in tiers if mask.any()]
            drawn = lazy_race(
                lambda n, source: self._arrivals(signal_P, present, eta, n, source), pools, k, rng
            )
        weights: list[Array] = []

        def log_weight(rows: Array) -> Array:
            if not weights:  # only a race that is not finished yet needs all weights
                weights.append(self.log_weight(signal_P, tier_P, eta))
            return weights[0][rows]

        return [
            finish_race(rows, pool, log_weight, k, rng)
            for rows, pool in zip(drawn, pools, strict=True)
        ]

    def _arrivals(
        self, signal_P: Array, tiers: list[Array], eta: float, n: int, rng: np.random.Generator
    ) -> Array:
        """n independent rows of `beta` or `uniform`: the mixture, part by part."""
        if self.config.name == "uniform":
            return rng.integers(0, len(signal_P), n)

        def log_weight(rows: Array) -> Array:
            return beta_log_weight(
                clamp_difficulty(signal_P[rows], self._rollouts), self.config.kappa
            )

        # Which part each arrival comes from: -1 the Beta density, otherwise one of the tiers.
        part = np.full(n, -1)
        if tiers:
            uniform = rng.random(n) < eta
            part[uniform] = rng.integers(0, len(tiers), int(uniform.sum()))
        rows = np.empty(n, np.int64)
        rows[part < 0] = accepted(log_weight, len(signal_P), int((part < 0).sum()), rng)
        for index, mask in enumerate(tiers):
            rows[part == index] = members(mask, int((part == index).sum()), rng)
        return rows
