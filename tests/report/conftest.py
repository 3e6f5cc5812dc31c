"""Run folders without training, and a browser to look at what is made of them."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

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


class Tab:
    """One place for all pages that are looked at one after the other.

    They are opened there under one address: what the browser has compiled for a page, plotly above
    all, it need not compile again for the next one. Nothing that a page stored is left for another.
    """

    def __init__(self, browser: Any, folder: Path, phone: bool) -> None:
        height = {"viewport": {"width": 1280, "height": 900}}
        self.page = browser.new_context(has_touch=phone, is_mobile=phone, **height).new_page()
        self.file = folder / "report.html"

    def open(self, file: Path, *, width: int = 1280, scheme: str = "light") -> Any:
        if self.file.exists():  # a page of this address is open
            self.page.evaluate("localStorage.clear()")
        shutil.copy(file, self.file)
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme)
        self.page.goto(self.file.as_uri())
        return self.page


@pytest.fixture(scope="module")
def tab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tab of a desk (False) or a phone (True); what a page does in it is not watched."""
    return cache(lambda phone: Tab(browser, tmp_path_factory.mktemp("tab"), phone))


@pytest.fixture
def visit(browser: Any, tab: Any) -> Iterator[Any]:
    """Opens a page and afterwards insists that it stayed quiet: no error, no foreign request."""
    with _visits(browser, tab) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def visit_once(browser: Any) -> Iterator[Any]:
    """The same for a page that several tests of a file share: in a tab of its own."""
    with _visits(browser, None) as open_page:
        yield open_page


@contextmanager
def _visits(browser: Any, tab: Any) -> Iterator[Any]:
    contexts, trouble, watched = [], [], []

    def watch(page: Any, address: str) -> None:
        def asked(request: Any) -> None:
            inside = request.url.startswith(("data:", "blob:", address.rsplit("/", 1)[0]))
            if not inside:
                trouble.append(f"request to {request.url}")

        def said(line: Any) -> None:
            if line.type in ("error", "warning"):
                trouble.append(f"console {line.text}")

        def failed(error: Any) -> None:
            trouble.append(f"error {error}")

        for name, heard in (("request", asked), ("console", said), ("pageerror", failed)):
            page.on(name, heard)
            watched.append((page, name, heard))

    def open_page(address: str, *, width: int = 1280, scheme: str = "light") -> Any:
        phone = width < 600
        if tab and address.startswith("file:"):
            held = tab(phone)
            watch(held.page, held.file.as_uri())
            file = Path(unquote(urlsplit(address).path))
            page = held.open(file, width=width, scheme=scheme)
        else:
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme=scheme,
                has_touch=phone,
                is_mobile=phone,
            )
            contexts.append(context)
            page = context.new_page()
            watch(page, address)
            page.goto(address)
        page.wait_for_selector(".js-plotly-plot .main-svg")
        return page

    yield open_page
    for page, name, heard in watched:
        if page.context not in contexts:
            page.evaluate("0")  # what it had to say until now has been heard
            page.remove_listener(name, heard)
    for context in contexts:
        context.close()
    assert trouble == []
