"""Weights in parts on two processes (FSDP2): the selections and gradients of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gradient_cases import TOLERANCE, as_saved, run, updates

import tiny

# Help, replay and KL; several updates; a probing, a generating and an asking estimator.
CASES = ("all", "mini-batches", "preset dare", "preset dapo", "preset edco", "preset llm-judge")
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sharded")
    tiny.policy().save_pretrained(root / "model")
    script = Path(__file__).with_name("gradient_cases.py")
    done = tiny.torchrun(str(script), str(root / "model"), str(root), *CASES, **FSDP2)
    assert done.returncode == 0, done.stderr[-4000:]
    return root


def saved(folder: Path, case: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{case}.pt")
    return found


def apart(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((value - second[name]).abs().max()) for name, value in first.items())


@pytest.mark.parametrize("case", CASES)
def test_two_halves_of_a_model_select_and_update_like_one(
    case: str, sharded: Path, tmp_path: Path
) -> None:
    two, (trainer, steps) = saved(sharded, case), run(case, tmp_path)
    one = as_saved(trainer, steps)
    whole = {name: len(value) for name, value in trainer.model.named_parameters()}
    assert two["parts"] == {name: (rows + 1) // 2 for name, rows in whole.items()}
    assert len(one["gradients"]) == len(two["gradients"]) == 2 * updates(case)
    assert tiny.close(one["selections"], two["selections"], 1e-6)
    assert tiny.close(one["difficulty"], two["difficulty"], 1e-5)
    for alone, together in zip(one["gradients"], two["gradients"], strict=True):
        assert apart(alone, together) < TOLERANCE
    assert apart(one["weights"], two["weights"]) < TOLERANCE
    if not case.startswith("preset"):
        assert max(two["distances"]) < TOLERANCE
