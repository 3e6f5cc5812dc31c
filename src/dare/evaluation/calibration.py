"""Do prompts that are predicted to fail so often fail so often?"""

from __future__ import annotations

from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.evaluation.intervals import mean_rate

BINS = 10
NEAR = 0.1
"""Predictions within 0.5 +- this count as near 0.5."""


def _rates(predicted_Q: Array, truth_Q: Array, trials_Q: Array) -> dict[str, Any]:
    """Prompts, mean prediction, mean true failure rate and its interval over prompts."""
    if not len(truth_Q):
        return {"prompts": 0, "predicted": None, "realised": None, "low": None, "high": None}
    realised, low, high = mean_rate(truth_Q, float(trials_Q.sum()))
    return {
        "prompts": len(truth_Q),
        "predicted": float(np.mean(predicted_Q)),
        "realised": realised,
        "low": low,
        "high": high,
    }


def calibration(predicted_Q: Array, truth_Q: Array, trials_Q: Array) -> list[dict[str, Any]]:
    """The prompts by predicted difficulty, in bins of equal width; empty ones are left out."""
    place = np.minimum((predicted_Q * BINS).astype(int), BINS - 1)
    lines = []
    for index in range(BINS):
        inside = place == index
        if inside.any():
            line = _rates(predicted_Q[inside], truth_Q[inside], trials_Q[inside])
            lines.append({"from": index / BINS, "to": (index + 1) / BINS, **line})
    return lines


def near_half(predicted_Q: Array, truth_Q: Array, trials_Q: Array) -> dict[str, Any]:
    """What the prompts predicted near 0.5 turn out to be.

    `distance` is their mean |true rate - 0.5|, `medium` the share with a true rate in 0.2 to 0.8.
    """
    # 0.6 - 0.5 is a hair more than 0.1 in floating point.
    near = np.abs(predicted_Q - 0.5) <= NEAR + 1e-9
    found, truth = near.any(), truth_Q[near]
    return {
        **_rates(predicted_Q[near], truth, trials_Q[near]),
        "distance": float(np.abs(truth - 0.5).mean()) if found else None,
        "medium": float(((truth >= 0.2) & (truth <= 0.8)).mean()) if found else None,
    }
