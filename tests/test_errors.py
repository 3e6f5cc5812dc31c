"""An error of a worker reaches the process that waits for it."""

from __future__ import annotations

import os
import pickle
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from dare.errors import InvalidInput
from dare.study import estimator_runs
from dare.study.estimators import Measurement


@pytest.mark.parametrize("value", [3, "text", None, {"a": [1]}, lambda: 0, open])
def test_it_travels_between_processes(value: Any) -> None:
    error = InvalidInput("field", value, "do this")
    found = pickle.loads(pickle.dumps(error))
    assert (str(found), found.field, found.fix) == (str(error), "field", "do this")


def dies_or_waits(recipe: Any, folder: Any, wanted: Any, seed: int, *_: Any) -> int:
    """A run that is killed from outside, beside one that does not end when it is asked to."""
    import signal

    if seed == 1:
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    return seed


@pytest.mark.timeout(120)
def test_a_killed_run_of_several_ends_the_study(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(estimator_runs, "_run_into", dies_or_waits)
    with pytest.raises(BrokenProcessPool):
        estimator_runs._side_by_side({}, tmp_path, Measurement(at=(1,)), [0, 1], None, 2)
