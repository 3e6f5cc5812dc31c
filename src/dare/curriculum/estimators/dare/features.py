"""What is known of a prompt before it is tried: the policy's state on it, its length, its solution.

States are the policy's own: of the last prompt token, at a middle layer. A few directions hold
nearly all that they say of difficulty. They are chosen once, from the first reading, and keep their
natural scale: those along which prompts differ more may say more.
"""

from __future__ import annotations

import numpy as np

from dare.curriculum.arrays import Array

DIRECTIONS = 96
_CROWD = 4096  # prompts that the directions are chosen from
_SPARE, _PASSES = 16, 3  # of the randomised search for them
_FURTHEST = 5.0  # standard deviations that a statistic may be from the mean

STATISTICS = 6
"""Of a solution's token log-probs: how many there are, their sum, the lowest, the first, and sum
and lowest of those that hold a digit (0 where none does)."""


def solution_statistics(logprobs: Array, sizes_Q: Array, number: Array) -> Array:
    """The statistics of solutions whose token log-probs lie one after the other.

    `number` says which tokens hold a digit. A number is what a step has come to, and a policy that
    would write another one fails; how a solution opens, words and closes is often a matter of
    style. So numbers count apart, and the first token is none of them.
    """
    starts = np.concatenate([[0], np.cumsum(sizes_Q)[:-1]]).astype(np.int64)
    numbers = np.where(number, logprobs, 0.0)
    numbers[starts] = 0.0
    return np.column_stack(
        [
            sizes_Q,
            np.add.reduceat(logprobs, starts),
            np.minimum.reduceat(logprobs, starts),
            logprobs[starts],
            np.add.reduceat(numbers, starts),
            np.minimum.reduceat(numbers, starts),
        ]
    )


def principal_directions(
    states_PH: Array, count: int, rng: np.random.Generator
) -> tuple[Array, Array, float]:
    """Centre, directions [H, count] and scale: (state - centre) @ directions / scale has mean
    square length 1. Randomised subspace iteration: no H x H matrix is decomposed."""
    rows = states_PH[:: -(-len(states_PH) // _CROWD)].astype(np.float64)
    centre = rows.mean(axis=0)
    rows = rows - centre
    width = min(count + _SPARE, *rows.shape)
    basis = rng.standard_normal((rows.shape[1], width))
    for _ in range(_PASSES):
        basis = np.linalg.qr(rows.T @ (rows @ basis))[0]
    _, _, within = np.linalg.svd(rows @ basis, full_matrices=False)
    directions = basis @ within.T[:, : min(count, width)]
    length = float(np.sqrt(((rows @ directions) ** 2).sum(axis=1).mean()))
    return centre, directions, max(length, 1e-12)


def solution_features(statistics_PS: Array) -> Array:
    """log(1 - x) of sums, lowest and first, and log length, each with mean 0 and deviation 1; then
    all products of two. 0 where there is no solution."""
    there = np.isfinite(statistics_PS).all(axis=1)
    known = statistics_PS[there]
    plain = np.column_stack([np.log(known[:, 0]), np.log1p(-np.minimum(known[:, 1:], 0.0))])
    plain = np.clip(standard(plain), -_FURTHEST, _FURTHEST)
    first, second = np.triu_indices(plain.shape[1])
    products = standard(plain[:, first] * plain[:, second])
    result = np.zeros((len(statistics_PS), plain.shape[1] + products.shape[1]))
    result[there] = np.hstack([plain, np.clip(products, -_FURTHEST, _FURTHEST)])
    return result


def standard(values_PF: Array) -> Array:
    """Columns with mean 0 and standard deviation 1; a constant one becomes 0."""
    if not len(values_PF):
        return values_PF
    spread = values_PF.std(axis=0)
    return np.asarray(
        (values_PF - values_PF.mean(axis=0)) / np.where(spread > 1e-9, spread, np.inf)
    )
