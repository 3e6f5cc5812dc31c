"""The back-ends that hold on this machine; a test that needs another one is skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dare_sandbox import Sandbox, close_all, open_sandbox, probe


@pytest.fixture(scope="session", params=["bwrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a back-end that holds here."""
    name = str(request.param)
    reason = probe()[name]
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    return name


@pytest.fixture
def sandbox(backend: str) -> Sandbox:
    """The shared sandbox of that back-end."""
    return open_sandbox(backend)


@pytest.fixture(scope="session", autouse=True)
def _close_everything() -> Iterator[None]:
    yield
    close_all()
