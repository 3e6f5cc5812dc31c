"""A cold start that trains, through the trainer: no rollout in vain, and a resume inside of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import tiny

SETTINGS: dict[str, Any] = {
    "curriculum": {**tiny.CLASSIC, "cold_start.references": 20, "cold_start.group_size": 4},
    "data": tiny.problems(0.95, 0.5, 0.05, each=16),
    "save_strategy": "steps",
    "save_steps": 2,
    "max_steps": 5,
}


def test_every_rollout_is_trained_on_and_a_resume_continues_bit_for_bit(tmp_path: Path) -> None:
    whole = tiny.trainer(tmp_path / "whole", **SETTINGS)
    whole.train()
    metrics = tiny.lines(tmp_path / "whole" / "metrics.jsonl")
    assert [line["rollouts"] for line in metrics][:3] == [32] * 3
    assert whole.generated_tokens == sum(line["generated_tokens"] for line in metrics)
    drawn = tiny.lines(tmp_path / "whole" / "selections.jsonl")
    first = [name for line in drawn[:3] for name in line["prompt"]]
    assert len(set(first[:20])) == 20
    tiny.trainer(tmp_path / "half", **{**SETTINGS, "max_steps": 2}).train()
    again = tiny.trainer(tmp_path / "half", **SETTINGS)
    again.train(resume_from_checkpoint=True)
    assert tiny.lines(tmp_path / "half" / "selections.jsonl") == drawn
    assert np.array_equal(whole.curriculum.difficulty(), again.curriculum.difficulty())
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
