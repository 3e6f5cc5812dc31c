"""These tests need vLLM, in an environment of its own: `make test-vllm`. Without it they are not
collected. (A folder called `vllm` here would be taken for the library.)"""

from importlib.util import find_spec

import pytest

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "vllm_engine" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # vLLM's own


def pytest_report_header() -> str | None:
    return None if find_spec("vllm") else "vLLM is not installed: see `make test-vllm`"
