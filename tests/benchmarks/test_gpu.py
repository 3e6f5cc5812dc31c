"""The figures of one GPU: derived from the recorded parts, and within the limits that were set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gpu
import pytest

import tiny
from dare.training.update import OwnPass

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


RUNS = {"first": RECORDED, "second": RECORDED["second_run"]}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_recorded_figures_follow_from_the_recorded_parts(run: dict[str, Any]) -> None:
    parts = {name: part for name, part in run.items() if name != "figures"}
    assert gpu.derived(parts) == run["figures"]


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
    assert name in RECORDED["figures"]
    for run in RUNS.values():
        figure = run["figures"].get(name, RECORDED["figures"][name])
        assert isinstance(figure, (int, float))
        assert AT_LEAST.get(name, figure) <= figure <= AT_MOST.get(name, figure)


def test_the_recorded_drift_is_of_the_updates_own_pass() -> None:
    drift = RECORDED["drift"]
    assert drift["rollouts"] >= 256
    assert drift["scored_ahead"] > 0  # some were read twice by the same pass: found, and left out
    assert drift["least_ess_share"] >= 0.9


def test_the_drift_is_of_rollouts_that_the_updates_pass_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_update: set[int] = set()
    real = OwnPass.deliver

    def deliver(self: OwnPass, curriculum: Any, step: int, everyone: Any) -> None:
        rows = everyone[0]["row"]
        by_update.update(self._batch.uid_R[rows[self._behaviour[rows]]].tolist())
        real(self, curriculum, step, everyone)

    monkeypatch.setattr(OwnPass, "deliver", deliver)
    ahead, callback = gpu.scored_ahead()
    trainer = tiny.trainer(
        tmp_path,
        max_steps=2,
        learning_rate=0.0,
        preset="paper",
        curriculum={"prompts_per_step": 0, "tiers": False, "estimator.refresh_share": "all"},
        callbacks=[callback],
    )
    callback.trainer = trainer
    trainer.train()
    buffer = trainer.curriculum.buffer
    known = set(buffer["uid"][buffer.has_behaviour].tolist())
    assert ahead
    assert by_update
    assert known - ahead == known & by_update
    found = gpu.drift(trainer.curriculum, ahead)
    assert found["rollouts"] > 0
    assert found["scored_ahead"] > 0
    assert found["worst_log_ratio"] < 1e-4
