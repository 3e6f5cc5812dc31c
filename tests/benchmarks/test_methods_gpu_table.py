"""The table of methods_gpu: interpolation, intervals, and figures of written runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import methods_gpu_table
import numpy as np
import pytest
from methods_gpu_table import area_weights, interval, weights_at
from scipy import stats


def test_weights_interpolate_as_numpy_does() -> None:
    places, values = np.array([0.0, 3.0, 4.0, 10.0]), np.array([0.1, 0.5, 0.2, 0.9])
    for place in (0.0, 1.0, 3.0, 3.7, 9.0, 10.0):
        assert weights_at(places, place) @ values == pytest.approx(np.interp(place, places, values))
    fine = np.linspace(0, 7, 70001)
    area = np.interp((fine[1:] + fine[:-1]) / 2, places, values).mean()
    assert area_weights(places, 7.0) @ values == pytest.approx(area, abs=1e-8)


def test_one_seed_is_a_paired_t_test_over_problems_and_more_take_both_in() -> None:
    rng = np.random.default_rng(0)
    gap = rng.integers(-1, 2, (3, 40)).astype(float)
    found = interval(gap[:1])
    low, high = stats.ttest_1samp(gap[0], 0.0).confidence_interval()
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=1e-5)
    both = interval(gap)
    low, high = stats.ttest_1samp(gap.mean(axis=1), 0.0).confidence_interval()
    assert both["seeds"] == 3
    assert both["low"] <= low + 1e-5
    assert both["high"] >= high - 1e-5


def written(folder: Path, arm: str, seed: int, points: list[tuple[int, float, str]]) -> None:
    """A finished run: (tokens, seconds, right) of each evaluation."""
    run = folder / "mixture" / arm / f"seed-{seed}"
    run.mkdir(parents=True)
    settings = {"sets": {"math500": "a"}, "problems": "b", "model": "c", "preset": arm}
    summary = {
        **{"task": "mixture", "arm": arm, "seed": seed, "settings": settings, "steps": 60},
        **{"tokens": points[-1][0], "seconds": points[-1][1], "groups": 40, "varied_groups": 10},
        **{"unscored_share": 0.0, "peak_gb": 1.0, "device": "cpu"},
    }
    (run / "summary.json").write_text(json.dumps(summary))
    lines = [
        {"step": n, "tokens": tokens, "seconds": s, "sets": {"math500": {"right": right}}}
        for n, (tokens, s, right) in enumerate(points)
    ]
    (run / "eval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_arms_are_compared_where_the_first_of_them_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, "grpo", 1, [(0, 0.0, "0000"), (100, 10.0, "1000"), (200, 20.0, "1100")])
    written(tmp_path, "grpo", 2, [(0, 0.0, "0000"), (100, 10.0, "1000"), (200, 20.0, "1100")])
    written(tmp_path, "dare", 1, [(0, 0.0, "0000"), (100, 20.0, "1110"), (400, 60.0, "1111")])
    written(tmp_path, "dare", 3, [(0, 0.0, "0000"), (100, 20.0, "1110"), (400, 60.0, "1111")])
    methods_gpu_table.main([str(tmp_path), "--out", str(tmp_path / "figures.json")])
    shown = capsys.readouterr().out.splitlines()
    figures: dict[str, Any] = json.loads(shown[-1])["tasks"]["mixture"]
    assert json.loads((tmp_path / "figures.json").read_text()) == json.loads(shown[-1])
    assert figures["ends"] == {"tokens": 200.0, "seconds": 20.0}
    dare, grpo = figures["arms"]["dare"], figures["arms"]["grpo"]
    at = dare["accuracy"]["math500"]
    assert at["tokens"]["mean"] == pytest.approx(0.75 + 0.25 / 3, abs=1e-4)
    assert at["seconds"]["mean"] == pytest.approx(0.75)
    gap = dare["difference"]["math500"]
    assert gap["tokens"]["end"]["seeds"] == 1  # seed 1 alone is in both
    assert gap["tokens"]["end"]["mean"] == pytest.approx(1 / 3, abs=1e-4)
    assert gap["seconds"]["end"]["mean"] == pytest.approx(0.25)
    # GRPO ends with 0.5 after 200 tokens and 20 s; DARE is there after two thirds of 100 and 20.
    reached = dare["reach"]["math500"]
    assert reached["tokens"]["times_fewer"] == pytest.approx(3.0, abs=1e-3)
    assert reached["seconds"]["times_fewer"] == pytest.approx(1.5, abs=1e-3)
    assert grpo["reach"]["math500"]["tokens"]["times_fewer"] == 1.0
    assert (dare["varied_share"], dare["tokens_per_varied_group"]) == (0.25, 40)
    assert any(line.startswith("| `dare` | 2 | math500 | 0.833 | +0.333 [") for line in shown)


def test_runs_of_other_problems_are_refused(tmp_path: Path) -> None:
    written(tmp_path, "grpo", 1, [(0, 0.0, "00"), (100, 10.0, "10")])
    written(tmp_path, "dare", 1, [(0, 0.0, "00"), (100, 10.0, "10")])
    file = tmp_path / "mixture" / "dare" / "seed-1" / "summary.json"
    file.write_text(file.read_text().replace('"b"', '"other"'))
    with pytest.raises(SystemExit, match="other problems"):
        methods_gpu_table.main([str(tmp_path)])
    with pytest.raises(SystemExit, match="no finished run"):
        methods_gpu_table.main([str(tmp_path / "mixture")])


def test_ends_are_compared_where_one_arm_is_the_cheaper_in_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    answers: dict[tuple[str, int], str] = {}

    def arm(name: str, tokens: int, seconds: tuple[float, float, float]) -> None:
        for seed, spent in zip((4, 5, 6), seconds, strict=True):
            answers[name, seed] = "".join(map(str, rng.integers(0, 2, 40)))
            written(
                tmp_path, name, seed, [(0, 0.0, "0" * 40), (tokens, spent, answers[name, seed])]
            )

    arm("grpo", 400, (10.0, 20.0, 30.0))
    short = "dare:max_steps=35"
    arm(short, 300, (11.0, 18.0, 28.0))  # less in the mean, not in every seed
    arm("dare", 300, (11.0, 22.0, 33.0))
    arm("dapo", 800, (40.0, 50.0, 60.0))
    methods_gpu_table.main([str(tmp_path)])
    shown = capsys.readouterr().out.splitlines()
    arms = json.loads(shown[-1])["tasks"]["mixture"]["arms"]
    assert "at_the_ends" not in arms["grpo"]
    found = arms[short]["at_the_ends"]
    assert found["cheaper"] == short
    assert found["cost"] == {"tokens": 0.75, "seconds": 0.95}
    gap = np.array(
        [
            np.array(list(answers[short, seed]), float)
            - np.array(list(answers["grpo", seed]), float)
            for seed in (4, 5, 6)
        ]
    )
    assert found["difference"]["math500"] == interval(gap)  # over seeds and problems, as elsewhere
    assert found["difference"]["math500"] != arms[short]["difference"]["math500"]
    assert arms["dare"]["at_the_ends"]["cheaper"] is None
    assert arms["dare"]["at_the_ends"]["cost"] == {"tokens": 0.75, "seconds": 1.1}
    assert arms["dapo"]["at_the_ends"]["cheaper"] == "grpo"
    assert any("for 0.75 x the tokens and 0.95 x the seconds |" in line for line in shown)
    assert any("0.75 x the tokens and 1.10 x the seconds (unequal) |" in line for line in shown)


def test_settings_that_differ_are_told_of_each_arm(tmp_path: Path) -> None:
    for name, rate in (("grpo", "2e-6"), ("grpo:learning_rate=3e-6", "3e-6")):
        written(tmp_path, name, 1, [(0, 0.0, "00"), (100, 10.0, "10")])
        file = tmp_path / "mixture" / name / "seed-1" / "summary.json"
        summary = json.loads(file.read_text())
        summary["settings"] |= {"learning_rate": float(rate), "top_p": 0.95}
        file.write_text(json.dumps(summary))
    methods_gpu_table.main([str(tmp_path), "--out", str(tmp_path / "figures.json")])
    task = json.loads((tmp_path / "figures.json").read_text())["tasks"]["mixture"]
    assert task["settings"]["top_p"] == 0.95
    assert "learning_rate" not in task["settings"]
    rates = {name: one["settings"]["learning_rate"] for name, one in task["arms"].items()}
    assert rates == {"grpo": 2e-6, "grpo:learning_rate=3e-6": 3e-6}
