"""The rule behind the default of sigma, on curves whose crossing is known."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dare.study.runs import Run


def _benchmark() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "fresh_share.py"
    spec = importlib.util.spec_from_file_location("fresh_share", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rule = _benchmark()
PRICES = (2.0, 1.0, 0.5)


def _run(seed: int, start: float, rise: float, steps: int = 20) -> Run:
    """A step costs 2 x 100 + 300 + 0.5 x 40 = 520; accuracy rises by `rise` a step."""
    tokens = {"generated": 100, "scored": 100, "trained": 300, "refreshed": 40}
    metrics = [{"step": step, "tokens": tokens} for step in range(steps)]
    evals = [{"step": step, "accuracy": start + rise * step} for step in range(0, steps + 1, 5)]
    return Run("one", seed, Path(), evals, metrics)


def test_the_cost_is_where_the_mean_curve_crosses() -> None:
    runs = [_run(0, 0.40, 0.01), _run(1, 0.44, 0.01)]  # the mean is 0.42 + 0.01 a step
    figures = rule.method(runs, PRICES, [0.5, 0.7])
    cost, low, high = figures["cost"]["0.5"]
    assert cost == pytest.approx(8 * 520, abs=20 * 520 / 2000)
    # Drawn again, both seeds may be the same one: 6 and 10 steps.
    assert (low, high) == pytest.approx((6 * 520, 10 * 520), abs=20 * 520 / 2000)
    assert figures["cost"]["0.7"] == [None, None, None]


def test_a_curve_ends_with_the_shortest_run() -> None:
    runs = [_run(0, 0.4, 0.01), _run(1, 0.4, 0.01, steps=10)]
    grid, accuracy = rule.on_grid([rule.curve(run, PRICES) for run in runs])
    assert grid[-1] == 10 * 520
    assert np.allclose(accuracy[:, -1], 0.5)


def test_prices_weigh_what_a_step_spends() -> None:
    place, _ = rule.curve(_run(0, 0.4, 0.01), (1.0, 0.0, 0.0))
    assert list(place) == [0, 500, 1000, 1500, 2000]
