"""pass@k without bias: the chance that at least one of k responses is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dare.errors import require

Array = npt.NDArray[Any]


def pass_at_k(samples_P: Array, right_P: Array, most: int) -> Array:
    """pass@1 ... pass@most of each problem, [P, most]; NaN where it has fewer samples than k.

    With c of n samples right, 1 - C(n - c, k) / C(n, k): of all ways to take k of the n samples,
    those that take a right one. The quotient is the product over i < k of (n - c - i) / (n - i),
    whose factors are at most 1, so nothing overflows and no two large numbers are subtracted.
    """
    samples, right = np.asarray(samples_P), np.asarray(right_P)
    require(most >= 1, "k", most, "must be at least 1")
    require(
        samples.shape == right.shape and bool(np.all((right >= 0) & (right <= samples))),
        "right_P",
        right.tolist()[:8],
        "counts must lie between 0 and the number of samples",
    )
    place = np.arange(most)
    left = samples[:, None] - place
    wrong = np.clip(left - right[:, None], 0, None)
    factor = np.where(left > 0, wrong / np.maximum(left, 1), np.nan)
    return 1.0 - np.cumprod(factor, axis=1)
