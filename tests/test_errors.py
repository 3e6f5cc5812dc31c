"""An error of a worker reaches the process that waits for it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from dare.errors import InvalidInput


@pytest.mark.parametrize("value", [3, "text", None, {"a": [1]}, lambda: 0, open])
def test_it_travels_between_processes(value: Any) -> None:
    error = InvalidInput("field", value, "do this")
    found = pickle.loads(pickle.dumps(error))
    assert (str(found), found.field, found.fix) == (str(error), "field", "do this")
