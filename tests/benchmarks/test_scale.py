"""The benchmark of scale measures what its page shows, at sizes that a test can pay."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import scale

import ranks

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "scale.json"


@pytest.mark.parametrize("estimator", ["dare", "posterior"])
def test_a_small_size_gives_every_figure_of_the_page(estimator):
    figures = scale.of_prompts(estimator, 300, 2)
    assert figures.keys() == json.loads(RESULTS.read_text("utf-8"))[estimator]["1000"].keys()
    assert all(value >= 0 for value in figures.values())
    assert figures["state_mb"] > 2 * scale.ROLLOUTS * scale.TOKENS * 8 / 1e6  # tokens of two steps


def test_what_is_extrapolated_lies_on_the_line_of_the_largest_two_sizes():
    kept = json.loads(RESULTS.read_text("utf-8"))
    assert kept["extrapolated"] == scale.extrapolated(kept)
    rows = {str(10**power): {"plan_s": 3.0 + 10**power, "save_s": 1 / power} for power in (3, 4, 5)}
    found = scale.extrapolated({"dare": rows, "posterior": rows})
    assert found["posterior"]["100000000"]["plan_s"] == 1e8
    assert found["dare"]["10000000"]["save_s"] == 0.2  # never below what was measured
    assert not {*found["dare"]} & {*rows}


def read(prompts: int) -> dict[str, float]:
    """As `scale.alone`, in a process that has imported everything already."""
    done = ranks.run(scale.__file__, "--one", "read", str(prompts))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_first_reading_holds_all_states_at_once():
    small, large = (read(prompts) for prompts in (500, 4000))
    assert large["peak_mb"] - small["peak_mb"] > 3500 * scale.HIDDEN * 8 / 1e6


def test_each_process_receives_what_all_send():
    one, eight = scale.of_processes(1), scale.of_processes(8)
    assert eight["received_mb"] == pytest.approx(8 * one["received_mb"], rel=0.01)
    assert one["received_mb"] > scale.PER_PROCESS * scale.TOKENS * 4 / 1e6


def test_two_processes_exchange_over_gloo(monkeypatch):
    monkeypatch.setattr(scale, "subprocess", SimpleNamespace(Popen=ranks.Started))
    assert 0 < scale.over_gloo(2) < 60
