"""Which sandbox is used, and that none is used that does not hold."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from dare.errors import InvalidInput
from dare_sandbox import Job, close_all, launch, open_sandbox, opening, probe
from dare_sandbox.local import LocalSandbox
from dare_sandbox.opening import examine


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had been tried yet."""
    close_all()
    monkeypatch.setattr(opening, "_faults", {})


def test_auto_is_the_first_that_holds() -> None:
    holding = [name for name in ("bwrap", "landlock") if probe()[name] is None]
    if not holding:
        pytest.skip(str(probe()))
    assert open_sandbox() is open_sandbox("auto") is open_sandbox(holding[0])
    assert open_sandbox().name == holding[0]


def test_a_missing_program_is_named(untried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InvalidInput, match="apt-get install bubblewrap"):
        open_sandbox("bwrap")
    assert "apt-get install bubblewrap" in str(probe()["bwrap"])


def test_refusal_when_nothing_holds(untried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "examine", lambda sandbox: "a program in it reads everything")
    with pytest.raises(InvalidInput) as caught:
        open_sandbox()
    for words in ("landlock: a program in it reads everything", "remote:http", "bubblewrap"):
        assert words in str(caught.value)


def test_a_start_that_fails_is_a_reason(untried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dataclasses.replace(launch.BWRAP, wrap=lambda python: ["/does/not/exist"])
    monkeypatch.setitem(opening._LOCAL, "bwrap", broken)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    with pytest.raises(InvalidInput, match=r"does not start.*FileNotFoundError"):
        open_sandbox("bwrap")


def test_none_needs_a_dangerous_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(opening.DANGER, raising=False)
    with pytest.raises(InvalidInput, match=opening.DANGER):
        open_sandbox("none")
    assert probe()["none"] is not None
    monkeypatch.setenv(opening.DANGER, "1")
    assert probe()["none"] is None
    assert open_sandbox("none").run(Job("print(1)")).stdout == b"1\n"


def test_the_examination_sees_that_nothing_holds() -> None:
    bare = LocalSandbox(launch.NONE)
    fault = examine(bare)
    bare.close()
    assert fault is not None
    for words in ("reads a file of the judge", "opens a socket of AF_INET", "may call unshare"):
        assert words in fault


def test_unknown_names() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'bwrap'"):
        open_sandbox("bwarp")
