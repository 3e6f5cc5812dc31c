"""Makes `tiny`, the small policy that the tests share, importable from every folder of tests."""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The matrices are tiny: more threads would only wait for each other, at twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # a trainer of TRL's would report itself

# A busy machine takes longer and must find the same.
settings.register_profile("any load", deadline=None)
settings.load_profile("any load")

_LONGEST = {  # half a minute or more
    *("test_sharded.py", "test_processes.py", "test_company.py", "test_nodes.py", "test_resume.py"),
    *("test_gradient.py", "test_rewards.py", "test_package.py", "test_report_page.py"),
    *("test_selection.py", "test_study.py", "test_programs.py", "test_code_corpus.py"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: begun last, one of them would be waited for alone."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)


def pytest_collection_finish() -> None:
    """What is imported by now stays; every run collects garbage, and need not look through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def light_worker(monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of that name, where a pool finds it."""
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    return "light_worker"


@pytest.fixture
def math_pool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The math verifier's own pool, whose start is slow; while a test lasts, a second an answer."""
    from dare_verify.math import default

    monkeypatch.setattr(default.pool, "limit_s", 1.0)
    return default.pool


@pytest.fixture
def dare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Callable[..., tuple[int, str, str]]:
    """Runs `dare WORDS` in this process and an empty folder: (exit code, stdout, stderr)."""
    from dare import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])  # modules beside a recipe are added to it
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dare", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call
