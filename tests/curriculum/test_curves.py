"""Difficulty estimates on the curves of a real GRPO run: history beats the last group."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("DARE_DATA", ROOT.parent / "shared" / "data"))
CURVES = DATA / "pass_rates" / "dsr_sub_grpo_curves_qwen2.5math1.5b.jsonl.gz"


def load():
    path = ROOT / "benchmarks" / "estimators_curves.py"
    spec = importlib.util.spec_from_file_location("estimators_curves", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not CURVES.exists(), reason=f"no {CURVES.name}; set DARE_DATA to its folder")
def test_the_default_estimate_predicts_the_next_pass_better_than_the_last_one_does():
    curves = load()
    table = curves.predict(curves.read_curves(CURVES), 8, 10, 43)
    # It has no features here, only the outcomes; draws use the mean of its belief, tables the
    # median, which is nearer without a larger squared error.
    assert table["dare"]["mae"] <= 0.081
    assert table["dare (mean, for draws)"]["mae"] <= 0.082
    others = [row["mse"] for name, row in table.items() if not name.startswith("dare")]
    assert table["dare"]["mse"] <= 0.98 * min(others)
    assert table["previous-fr (K = G, the last pass)"]["mae"] == pytest.approx(0.099, abs=0.001)
    assert table["discounted mean (0.8)"]["mae"] == pytest.approx(0.082, abs=0.001)
    assert min(row["mae"] for row in table.values()) == table["dare"]["mae"]


def test_simulated_curves_of_other_speeds_and_group_sizes():
    # How fast evidence fades is learnt online: slow drift is met well, and fast drift, of which a
    # mean over five passes knows beforehand, not much worse than by that mean.
    curves = load()
    rng = np.random.default_rng(0)
    for speed, group in ((0.02, 4), (0.1, 16), (0.3, 4), (0.3, 16)):
        logit = rng.normal(0, 2.5, size=(300, 1)) - np.linspace(0, 1, 30)
        logit = logit + np.cumsum(rng.normal(0, speed, size=(300, 30)), axis=1)
        rate = 1 / (1 + np.exp(-logit))
        observed = list(rng.binomial(group, rate) / group)
        table = curves.predict(observed, group, 10, 29, histories=(1,))
        dare, mean = table["dare"], table["discounted mean (0.8)"]
        if speed < 0.3:
            assert dare["mae"] <= 1.02 * mean["mae"]
            assert dare["mse"] <= mean["mse"]
        else:
            assert dare["mse"] <= 1.1 * mean["mse"]
        last = table["previous-fr (K = G, the last pass)"]
        assert dare["mae"] < last["mae"]
        assert dare["mse"] < 0.85 * last["mse"]
