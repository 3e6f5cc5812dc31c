"""The threshold on the ESS: how many estimates each would accept, and how far off they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array, compact
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators.paper import effective_sample_size, snis_difficulty, weights

TAUS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


def aligned(buffer: RolloutBuffer, rows: Array, clip: float) -> tuple[Array, Array]:
    """ESS and SNIS estimate of these prompts; 0 and 0.5 where the buffer has nothing of them."""
    plain = buffer.plain
    prompts, index = compact(buffer["prompt"][plain])
    weight = weights(buffer.log_ratio[plain], clip)
    reward = buffer["success"][plain].astype(np.float64)
    ess, difficulty = np.zeros(len(rows)), np.full(len(rows), 0.5)
    if len(prompts):
        place = np.minimum(np.searchsorted(prompts, rows), len(prompts) - 1)
        held = prompts[place] == rows
        ess[held] = effective_sample_size(weight, index, len(prompts))[place[held]]
        difficulty[held] = snis_difficulty(weight, reward, index, len(prompts))[place[held]]
    return ess, difficulty


def sweep(
    ess_Q: Array, aligned_Q: Array, prior_Q: Array, truth_Q: Array, taus: Sequence[float] = TAUS
) -> list[dict[str, Any]]:
    """For each threshold the share accepted (ESS >= tau) and the error, overall and of those.

    Prompts that are not accepted fall back to the cold start, as in the paper. A prompt without
    rollouts has an ESS of 0 and is never accepted; `held_coverage` counts the others alone.
    """
    held = ess_Q > 0
    lines: list[dict[str, Any]] = []
    for tau in taus:
        accepted = held & (ess_Q >= tau)
        error = np.abs(np.where(accepted, aligned_Q, prior_Q) - truth_Q)
        lines.append(
            {
                "tau": float(tau),
                "coverage": _mean(accepted),
                "held_coverage": _mean(accepted[held]),
                "mae": _mean(error),
                "mae_held": _mean(error[held]),
                "mae_accepted": _mean(error[accepted]),
            }
        )
    return lines


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None
