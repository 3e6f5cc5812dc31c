"""A live report: it follows the files, keeps the reader's place, and talks to this machine only."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dare.errors import InvalidInput
from dare.report.serve import Follower, make_server


@pytest.fixture
def live(run: Path, tmp_path: Path) -> Path:
    """A copy of the run of which half the steps are written."""
    folder = tmp_path / "live"
    shutil.copytree(run, folder)
    for name in ("metrics.jsonl", "selections.jsonl", "samples.jsonl", "landscape.jsonl"):
        kept = [line for line in (run / name).read_text().splitlines() if step_of(line) < 20]
        (folder / name).write_text("".join(line + "\n" for line in kept))
    return folder


def step_of(line: str) -> int:
    return int(json.loads(line)["step"])


def go_on(run: Path, folder: Path, step: int) -> None:
    """Write what the run writes in one more step, and half of the next line."""
    for name in ("selections.jsonl", "samples.jsonl", "landscape.jsonl", "metrics.jsonl"):
        own = [line for line in (run / name).read_text().splitlines() if step_of(line) == step]
        whole = (folder / name).read_text().rpartition("\n")[0] + "\n"
        (folder / name).write_text(whole + "".join(line + "\n" for line in own) + '{"step": 9')


@pytest.fixture
def served(live: Path) -> Iterator[Any]:
    server = make_server([str(live)], 0, rest=0.0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def get(server: Any, path: str, host: str | None = None) -> tuple[int, bytes, Any]:
    link = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    link.request("GET", path, headers={} if host is None else {"Host": host})
    answer = link.getresponse()
    found = answer.status, answer.read(), answer.headers
    link.close()
    return found


def test_news_come_when_the_files_change_and_only_then(served, run: Path, live: Path) -> None:
    status, body, _ = get(served, "/content.json")
    news = json.loads(body)
    assert status == 200
    version = news["version"]
    assert get(served, f"/content.json?not={version}")[0] == 204
    go_on(run, live, 20)
    status, body, _ = get(served, f"/content.json?not={version}")
    news = json.loads(body)
    assert status == 200
    assert news["version"] > version
    assert news["content"]["axes"]["run0"]["step"][-1] == 21


def test_a_file_that_breaks_is_reported_and_the_last_state_stays(served, run, live: Path) -> None:
    held = (live / "metrics.jsonl").read_text()
    (live / "metrics.jsonl").write_text("nonsense\n" + held)
    news = json.loads(get(served, "/content.json")[1])
    assert "metrics.jsonl" in news["error"]
    assert "line 1" in news["error"]
    assert news["content"]["axes"]["run0"]["step"][-1] == 20
    assert get(served, "/")[0] == 200
    (live / "metrics.jsonl").write_text(held)
    assert json.loads(get(served, "/content.json")[1])["error"] is None


def test_only_this_machine_is_answered_and_only_with_the_report(served) -> None:
    assert served.server_address[0] == "127.0.0.1"
    assert get(served, "/", host="evil.example")[0] == 403
    assert get(served, "/", host=f"localhost:{served.server_address[1]}")[0] == 200
    for path in ("/metrics.jsonl", "/../config.yaml", "/%2e%2e/config.yaml", "/x"):
        assert get(served, path)[0] == 404
    _, body, headers = get(served, "/")
    assert b"connect-src 'self'" in body
    assert headers["Cache-Control"] == "no-store"


def test_requests_that_make_no_sense_are_answered_quietly(served, capfd) -> None:
    port = served.server_address[1]
    for line in (b"GET //[ HTTP/1.1", b"GET /../../etc/passwd HTTP/1.1", b"GET http://[ HTTP/1.1"):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as link:
            link.sendall(line + b"\r\nHost: localhost\r\n\r\n")
            assert b" 404 " in link.recv(100)
    for _ in range(3):  # a reader who asks and leaves at once, with a reset
        link = socket.create_connection(("127.0.0.1", port), timeout=30)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        link.close()
    assert get(served, "/content.json")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_folder_that_goes_away_is_reported_and_the_last_state_stays(served, live: Path) -> None:
    live.rename(live.with_name("gone"))
    news = json.loads(get(served, "/content.json")[1])
    assert "there is no such folder" in news["error"]
    assert news["content"]["axes"]["run0"]["step"][-1] == 20


def test_a_run_that_joins_a_study_appears_on_the_open_page(run: Path, tmp_path, visit) -> None:
    study = tmp_path / "study"
    shutil.copytree(run, study / "a")
    server = make_server([str(study)], 0, rest=0.0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        page = visit(f"http://127.0.0.1:{server.server_address[1]}/")
        assert page.locator("#comparison").count() == 0
        page.click("#axis button[data-value=tokens]")
        shutil.copytree(run, study / "b")
        page.wait_for_selector("#comparison [data-block=comparison-curves] .main-svg")
        assert page.locator("#run option").all_inner_texts() == ["a", "b"]
        assert page.locator("#axis [aria-pressed=true]").inner_text() == "Tokens"
        page.select_option("#run", "1")
        assert page.locator("section#landscape p.soft").inner_text() == "Run: b"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_busy_port_is_refused(live: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(InvalidInput, match="--port") as caught:
            make_server([str(live)], port)
    assert caught.value.value == port
    with pytest.raises(InvalidInput, match="65535"):
        make_server([str(live)], 70_000)


def test_readings_rest_between_changes(run: Path, live: Path) -> None:
    follower = Follower([str(live)], rest=60.0)
    go_on(run, live, 20)
    follower.refresh()
    assert follower.version == 1


def test_a_page_that_follows_keeps_the_readers_place(served, run: Path, live: Path, visit) -> None:
    page = visit(f"http://127.0.0.1:{served.server_address[1]}/")
    page.click("#axis button[data-value=tokens]")
    block = page.locator("[data-block=samples]")
    block.locator("[data-filter=tier]").select_option("hard")
    block.locator("input[type=search]").fill("sum")
    page.wait_for_timeout(300)  # the list is made anew a moment after the last key
    block.locator(".sample").nth(1).locator("summary").click()
    opened = block.locator("details[open] pre").first.inner_text()
    block.locator(".sample").nth(1).scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    before = page.evaluate("scrollY")
    steps = "() => document.querySelector(\"[data-block='tiles']\").textContent"
    assert "Steps20" in page.evaluate(steps)
    go_on(run, live, 20)
    page.wait_for_function(
        "() => document.querySelector('[data-block=tiles]').textContent.includes('Steps21')"
    )
    assert page.evaluate("scrollY") == pytest.approx(before, abs=3)
    assert page.locator("#axis [aria-pressed=true]").inner_text() == "Tokens"
    assert block.locator("[data-filter=tier]").input_value() == "hard"
    assert block.locator("input[type=search]").input_value() == "sum"
    assert opened in block.locator("details[open] pre").all_inner_texts()
    hard = sum(
        json.loads(line)["tier"] == "hard"
        for line in (live / "samples.jsonl").read_text().splitlines()[:-1]
    )
    assert block.locator("[aria-live]").inner_text().startswith(f"{hard} of")
    assert page.locator("#live").inner_text().startswith("Live")
