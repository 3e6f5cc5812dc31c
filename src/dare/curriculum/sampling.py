"""Exact weighted sampling without replacement: Gumbel top-k, and the same race run lazily.

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

from dare.curriculum.arrays import Array

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
