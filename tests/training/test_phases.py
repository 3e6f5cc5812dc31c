"""The time of a step: all of it is told, by phase."""

from __future__ import annotations

import time

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
