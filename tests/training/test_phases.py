"""The time of a step: all of it is told, by phase."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from transformers import Trainer

import tiny
from dare.training.phases import Phases


def test_the_phases_of_a_step_are_all_of_its_time() -> None:
    before = time.perf_counter()
    phases = Phases()
    began = time.perf_counter()
    with phases.measure("train"):
        time.sleep(0.05)
    time.sleep(0.1)  # the optimiser's step, say
    ended = time.perf_counter()
    phases.rest("update")
    after = time.perf_counter()
    assert set(phases.seconds) == {"train", "update"}
    assert phases.seconds["update"] >= 0.1
    assert ended - began <= sum(phases.seconds.values()) <= after - before


def test_the_reading_that_waits_for_the_device_is_in_the_phase_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first number read after a backward pass waits for all of it."""
    read: list[str] = []

    class Told(torch.Tensor):
        def __float__(self) -> float:
            read.append(trainer._phases.now)
            return float(self.item())

    real = Trainer.training_step
    monkeypatch.setattr(
        Trainer, "training_step", lambda self, *given: real(self, *given).as_subclass(Told)
    )
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.train()
    assert read[0] == "train"
