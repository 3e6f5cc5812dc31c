"""Run folders without training, and a browser to look at what is made of them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hostile_texts import HOSTILE

_SCRIPT = Path(__file__).parents[2] / "benchmarks" / "report.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report_benchmark", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """benchmarks/report.py, which knows how to write a run folder and how to draw every plot."""
    return _load()


@pytest.fixture(scope="session")
def run(synthetic: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 40 steps on 400 prompts. Read it, do not change it."""
    folder = tmp_path_factory.mktemp("report") / "mine"
    synthetic.synthesise(folder, steps=40, prompts=400, drawn=32, words=20)
    return folder


@pytest.fixture(scope="session")
def hostile(synthetic: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with texts that would like to be something else."""
    folder = tmp_path_factory.mktemp("hostile") / "<img src=x onerror=alert(1)>"
    synthetic.synthesise(folder, steps=12, prompts=100, drawn=16, words=10)
    with open(folder / "samples.jsonl", "a", encoding="utf-8") as file:
        for step, text in enumerate(HOSTILE):
            sample = {
                "step": 12 + step,
                "id": f"<u>{step}</u>",
                "tier": "hard",
                "difficulty": 0.9,
                "conditioning": "hinted",
                "hint": [text],
                "prompt": [{"role": "<i>user</i>", "content": text}],
                "response": text,
                "reward": 0.5,
                "tokens": 7,
                "finish": "stop",
            }
            file.write(json.dumps(sample) + "\n")
    return folder


@pytest.fixture(scope="module")
def browser(synthetic: Any) -> Iterator[Any]:
    """A Chromium for the tests of a file; they are skipped where there is none.

    Not for the whole session: while it is open an event loop runs in this process, and tests
    elsewhere start one of their own.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = synthetic.browser_path()
    if path is None:
        pytest.skip("no Chromium or Chrome is installed")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=path, args=list(synthetic.ARGUMENTS))
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """Opens a page and afterwards insists that it stayed quiet: no error, no foreign request."""
    with _visits(browser) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def visit_once(browser: Any) -> Iterator[Any]:
    """The same for a page that several tests of a file share."""
    with _visits(browser) as open_page:
        yield open_page


@contextmanager
def _visits(browser: Any) -> Iterator[Any]:
    contexts, trouble = [], []

    def open_page(address: str, *, width: int = 1280, scheme: str = "light", **more: Any) -> Any:
        phone = width < 600
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            has_touch=phone,
            is_mobile=phone,
            **more,
        )
        contexts.append(context)
        page = context.new_page()
        own = address.split("?")[0]

        def asked(request: Any) -> None:
            inside = request.url.startswith(("data:", "blob:", own.rsplit("/", 1)[0]))
            if not inside:
                trouble.append(f"request to {request.url}")

        page.on("request", asked)
        page.on("pageerror", lambda error: trouble.append(f"error {error}"))
        page.on(
            "console",
            lambda line: (
                trouble.append(f"console {line.text}")
                if line.type in ("error", "warning")
                else None
            ),
        )
        page.goto(address)
        page.wait_for_selector(".js-plotly-plot .main-svg")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []
