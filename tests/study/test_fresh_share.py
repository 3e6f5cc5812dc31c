"""The rule behind the default of sigma, on curves whose crossing is known."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dare.runs.methods import Run


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
    runs = [_run(seed, 0.42 + away, 0.01) for seed, away in enumerate((-0.01, 0.0, 0.01))]
    figures = rule.method(runs, PRICES, [0.5, 0.62, 0.7])  # the mean is 0.42 + 0.01 a step
    cost, low, high = figures["cost"]["0.5"]
    a_place = 20 * 520 / 2000
    assert cost == pytest.approx(8 * 520, abs=a_place + 1)
    half = stats.t.ppf(0.975, 2) * 0.01 / np.sqrt(3)  # of the mean's interval, in accuracy
    steps = half / 0.01
    assert (low, high) == pytest.approx(((8 - steps) * 520, (8 + steps) * 520), abs=a_place + 1)
    assert figures["cost"]["0.62"][2] is None  # the lower end is not there yet
    assert figures["cost"]["0.7"] == [None, None, None]
    assert rule.method(runs[:1], PRICES, [0.5])["cost"]["0.5"][1:] == [None, None]


def test_methods_are_compared_at_what_the_base_paid() -> None:
    base = [_run(seed, 0.42 + seed / 100, 0.01) for seed in range(3)]
    own = [_run(seed, 0.42 + seed / 100, 0.02) for seed in range(3)]
    assert rule.gain(own, base, PRICES, 8 * 520.0) == pytest.approx([0.08] * 3)
    assert rule.gain(own, base, PRICES, None) == [None] * 3
    assert rule.gain(own, base, PRICES, 21 * 520.0) == [None] * 3
    assert rule.gain(own[:2], base, PRICES, 8 * 520.0) == [None] * 3


def test_a_curve_ends_with_the_shortest_run() -> None:
    runs = [_run(0, 0.4, 0.01), _run(1, 0.4, 0.01, steps=10)]
    grid, accuracy = rule.on_grid([rule.curve(run, PRICES) for run in runs])
    assert grid[-1] == 10 * 520
    assert np.allclose(accuracy[:, -1], 0.5)


def test_prices_weigh_what_a_step_spends() -> None:
    place, _ = rule.curve(_run(0, 0.4, 0.01), (1.0, 0.0, 0.0))
    assert list(place) == [0, 500, 1000, 1500, 2000]
