"""Which prompts a step draws: by value, Beta, softmax, Thompson or uniform (METHOD 5).

Adding Gumbel noise to log-weights and keeping the k largest is sequential sampling without
replacement. It is a race: prompt i arrives after an exponential time of rate w_i, and the first k
arrivals are the draw. The dense form times every prompt. The lazy form draws arrivals one by one
and skips those that came before, which gives the same law for the price of about k draws instead
of one pass over all prompts. Where arrivals get rare (few prompts hold nearly all of the weight)
the rest of the race is run densely over who is left, which the race does not notice: it has no
memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dare.config import SelectionConfig
from dare.config.reads import SELECTOR_READS
from dare.curriculum.arrays import Array
from dare.errors import InvalidInput

Arrivals = Callable[[int, np.random.Generator], Array]
"""arrivals(n, rng): n independent rows, each with probability proportional to its weight."""


def gumbel_top_k(log_weight: Array, k: int, rng: np.random.Generator) -> Array:
    """k rows without replacement, probabilities proportional to exp(log_weight), in drawn order.

    A weight of -inf is never drawn.
    """
    return top_k(log_weight - np.log(rng.standard_exponential(len(log_weight))), k)


def top_k(keys: Array, k: int) -> Array:
    """Positions of the k largest keys, largest first; keys of -inf are left out."""
    k = min(k, len(keys))
    if k <= 0:
        return np.empty(0, np.int64)
    best = np.argpartition(keys, len(keys) - k)[len(keys) - k :]
    best = best[np.argsort(-keys[best], kind="stable")]
    return best[keys[best] > -np.inf]


def lazy_race(
    arrivals: Arrivals, pools: list[Array], k: int, rng: np.random.Generator
) -> list[Array]:
    """The first k distinct arrivals of each pool (boolean masks over rows), in order.

    A pool that fills slowly comes back short: `finish_race` completes it.
    """
    drawn = [np.empty(0, np.int64) for _ in pools]
    wanted = [min(k, int(np.count_nonzero(pool))) for pool in pools]
    size = 2 * k + 64
    for _ in range(8):
        if all(len(rows) >= want for rows, want in zip(drawn, wanted, strict=True)):
            break
        new = arrivals(size, rng)
        drawn = [
            rows if len(rows) >= want else distinct(np.concatenate([rows, new[pool[new]]]))
            for rows, pool, want in zip(drawn, pools, wanted, strict=True)
        ]
        size = min(2 * size, 1 << 18)
    return [rows[:want] for rows, want in zip(drawn, wanted, strict=True)]


def finish_race(
    drawn: Array,
    pool: Array,
    log_weight: Callable[[Array], Array],
    k: int,
    rng: np.random.Generator,
) -> Array:
    """`drawn`, completed to k rows of the pool by a dense race among those not yet drawn."""
    if len(drawn) >= min(k, int(np.count_nonzero(pool))):
        return drawn
    left = pool.copy()
    left[drawn] = False
    rows = np.flatnonzero(left)
    rest = gumbel_top_k(log_weight(rows), k - len(drawn), rng)
    return np.concatenate([drawn, rows[rest]])


def accepted(
    log_weight: Callable[[Array], Array], count: int, n: int, rng: np.random.Generator
) -> Array:
    """n independent rows with probability proportional to exp(log_weight(rows)), at most 1.

    Uniform proposals are accepted by their weight; where hardly any is, the weights of all rows
    are added up instead.
    """
    found: list[Array] = []
    missing, size = n, 2 * n + 64
    for _ in range(6):
        rows = rng.integers(0, count, size)
        found.append(rows[rng.random(size) < np.exp(log_weight(rows))][:missing])
        missing -= len(found[-1])
        if not missing:
            break
        size = min(4 * size, 1 << 18)
    if missing:
        # Searching the running sum per row is exact too, and costs one pass over all rows.
        every = log_weight(np.arange(count))
        total = np.cumsum(np.exp(every - every.max()))
        found.append(np.searchsorted(total, rng.random(missing) * total[-1], side="right"))
    return np.concatenate(found)


def members(mask: Array, n: int, rng: np.random.Generator) -> Array:
    """n independent rows, uniform over a mask that holds at least one."""
    share = np.count_nonzero(mask) / len(mask)
    if share < 0.05 or len(mask) < 1024:
        rows = np.flatnonzero(mask)
        return rows[rng.integers(0, len(rows), n)]
    found = np.empty(0, np.int64)
    while len(found) < n:
        rows = rng.integers(0, len(mask), int((n - len(found)) / share * 1.2) + 16)
        found = np.concatenate([found, rows[mask[rows]]])
    return found[:n]


def distinct(rows: Array) -> Array:
    """First occurrences, in order."""
    _, first = np.unique(rows, return_index=True)
    return rows[np.sort(first)]


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
    turn = np.floor(np.arange(size + 1) * share + offset)
    from_first = turn[1:] > turn[:-1]
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
        self._eta = config.eta if "selection.eta" in SELECTOR_READS[config.name] else 0.0

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
        if self.config.name == "value":
            # Two draws, not one by a mixture of weights: once the few prompts that hold nearly all
            # of the weight are drawn, the uniform part would fill most of the step.
            best = gumbel_top_k(signal_P, k, rng)
            uniform = gumbel_top_k(np.zeros(count), k, rng)
            both = interleave(uniform, best, self._eta, 2 * k, float(rng.random()))
            return distinct(both)[:k]
        if self.config.explore == "off" or covered in (0, count):
            pools = [np.ones(count, bool)]
            return self._draw_pools(signal_P, tier_P, self._eta, pools, k, rng, sample_P)[0]
        pools = [~seen_P, seen_P]
        unseen, seen = self._draw_pools(signal_P, tier_P, 0.0, pools, k, rng, sample_P)
        takes = max(taken or k, 1)
        supply = self._supply(signal_P, seen_P, covered, rng) / takes
        share = explore_share(self.config, covered / count, supply, covered / takes)
        if self._eta == 0.0:
            return interleave(unseen, seen, share, k, float(rng.random()))
        share = min(1.0, share / max(1.0 - self._eta, 1e-9))
        rest = interleave(unseen, seen, share, k, float(rng.random()))
        every = [np.ones(count, bool)]
        by_tier = self._draw_pools(signal_P, tier_P, 1.0, every, k, rng, sample_P)[0]
        return distinct(interleave(by_tier, rest, self._eta, 2 * k, float(rng.random())))[:k]

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
        log_weight = self.log_weight(signal_P, tier_P, self._eta)
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
        if config.name == "softmax" or len(signal_P) < self._dense_below:
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
