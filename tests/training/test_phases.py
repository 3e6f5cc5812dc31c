"""The time of a step: all of it is told, by phase."""

from __future__ import annotations

import time

import pytest

from dare.training.phases import Phases


def test_the_phases_of_a_step_are_all_of_its_time() -> None:
    phases = Phases()
    began = time.perf_counter()
    with phases.measure("train"):
        time.sleep(0.05)
    time.sleep(0.1)  # the optimiser's step, say
    phases.rest("update")
    gone = time.perf_counter() - began
    assert set(phases.seconds) == {"train", "update"}
    assert phases.seconds["update"] >= 0.1
    assert sum(phases.seconds.values()) == pytest.approx(gone, abs=0.02)
