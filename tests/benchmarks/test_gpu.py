"""The figures of one GPU: derived from the recorded parts, and within the limits that were set."""

from __future__ import annotations

import json
from pathlib import Path

import gpu
import pytest

RECORDED = json.loads(
    (Path(__file__).parents[2] / "docs" / "results" / "gpu.json").read_text("utf-8")
)
AT_LEAST = {
    "decode_tok_s_256": 30_000,
    "decode_tok_s_1024": 60_000,
    "decode_vs_generate": 10,
    "decode_vs_vllm": 0.8,
    "train_mfu": 0.30,
    "tokens_per_s_vs_trl": 2,
}
AT_MOST = {
    "dare_step_vs_grpo_step": 1.10,
    "own_share": 0.05,
    "peak_gb": 30,
    "plan_error": 0.2,
    "memory_vs_trl": 1,
}


def test_the_recorded_figures_follow_from_the_recorded_parts() -> None:
    assert gpu.derived(RECORDED) == RECORDED["figures"]


def test_rates_of_training_count_the_optimisers_seconds() -> None:
    part = {"train_tok_s": 400, "train_response_tok_s": 200, "train_mfu": 0.4}
    found = gpu.trained({**part, "seconds": {"train": 3.0, "update": 1.0, "generate": 5.0}})
    assert found == {"train_tok_s": 300, "train_response_tok_s": 150, "train_mfu": 0.3}
    assert gpu.trained({**part, "seconds": {"train": 3.0}}) == part  # recorded before `update` was


def test_a_later_call_leaves_the_parts_it_does_not_measure_as_they_were(tmp_path: Path) -> None:
    """Other weights and versions of today are no news of what was measured before."""
    out = tmp_path / "gpu.json"
    assert gpu.begun(out) == {}
    gpu.keep(out, RECORDED)
    assert gpu.begun(out) == RECORDED


def test_a_part_says_with_what_it_was_measured() -> None:
    found = gpu.stamp("random", "a card")
    assert (found["weights"], found["device"]) == ("random", "a card")
    assert found["versions"]["torch"] == gpu.version_of("torch")
    assert found["time"].endswith("Z")


@pytest.mark.parametrize("name", [*AT_LEAST, *AT_MOST])
def test_a_recorded_figure_is_a_number_within_its_limit(name: str) -> None:
    figure = RECORDED["figures"][name]
    assert isinstance(figure, (int, float))
    assert AT_LEAST.get(name, figure) <= figure <= AT_MOST.get(name, figure)
