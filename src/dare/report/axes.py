"""The three ways along x: steps, generated tokens, time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.report.blocks import binned, numbers, thinned
from dare.report.folder import RunData

_POINTS = 1000
_MANY = 300


class Axes:
    """Values along x by name, each as steps, tokens and time. Plots name the ones they use."""

    def __init__(self, runs: Sequence[RunData]) -> None:
        longest = max((float(run.seconds[-1]) for run in runs if len(run.seconds)), default=0.0)
        self.unit, self._scale = "seconds", 1.0
        if longest > 180:
            self.unit, self._scale = ("minutes", 60.0) if longest < 10800 else ("hours", 3600.0)
        self._held: dict[str, dict[str, Any]] = {}
        most = _POINTS if len(runs) <= 4 else _MANY
        self._edges = [thinned(len(run.metrics), most) for run in runs]
        for place, (run, edges) in enumerate(zip(runs, self._edges, strict=True)):
            parts = (binned(part, edges) for part in (run.step + 1, run.tokens, run.seconds))
            self._add(self.of(place), *parts)

    def of(self, place: int) -> str:
        """The axis of a run's training steps."""
        return f"run{place}"

    def thin(self, place: int, series: Array) -> Array:
        """A series of the run's training steps, on that axis."""
        return binned(series, self._edges[place])

    def at(self, name: str, run: RunData, steps: Array, *, done: bool = False) -> str:
        """An axis for other steps of the run; `done` counts finished steps, as evaluations do.

        Files count steps from 0, people from 1: the first step shows as 1, like the evaluation
        that follows it.
        """
        spent = []
        for series in (run.tokens, run.seconds):
            known = np.isfinite(series) & np.isfinite(run.step)
            if not known.any():
                spent.append(np.full(len(steps), np.nan))
                continue
            place, value = run.step[known], series[known]
            if done:  # nothing is spent before the first step, and step n is done at n + 1
                place, value = np.append(0, place + 1), np.append(0.0, value)
            spent.append(np.interp(steps, place, value))
        self._add(name, np.asarray(steps, np.float64) + (not done), *spent)
        return name

    def to_dict(self) -> dict[str, Any]:
        """As the page reads it."""
        return self._held

    def _add(self, name: str, step: Array, tokens: Array, seconds: Array) -> None:
        self._held[name] = {
            "step": numbers(step, 9),
            "tokens": numbers(tokens, 7),
            "time": numbers(seconds / self._scale, 7),
        }
