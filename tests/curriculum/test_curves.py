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
    assert table["dare"]["mae"] <= 0.0805
    assert table["previous-fr (K = G, the last pass)"]["mae"] == pytest.approx(0.099, abs=0.001)
    assert table["discounted mean (0.8)"]["mae"] == pytest.approx(0.082, abs=0.001)
    assert min(row["mae"] for row in table.values()) <= 0.082


def test_simulated_curves_of_other_speeds_and_group_sizes():
    # The forgetting rate is learnt online, so one setting must do for slow and fast drift.
    curves = load()
    rng = np.random.default_rng(0)
    for speed in (0.02, 0.1, 0.3):
        for group in (4, 16):
            logit = rng.normal(0, 2.5, size=(300, 1)) - np.linspace(0, 1, 44)
            logit = logit + np.cumsum(rng.normal(0, speed, size=(300, 44)), axis=1)
            rate = 1 / (1 + np.exp(-logit))
            observed = list(rng.binomial(group, rate) / group)
            table = curves.predict(observed, group, 10, 43)
            assert table["dare"]["mae"] <= 1.02 * table["discounted mean (0.8)"]["mae"]
            assert table["dare"]["mae"] < table["previous-fr (K = G, the last pass)"]["mae"]
