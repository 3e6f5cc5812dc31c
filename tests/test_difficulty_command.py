"""`dare difficulty`: what is shown, filtered, sorted and exported is what the table holds."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import typer
from typer.testing import CliRunner

from dare import InvalidInput
from dare.commands.difficulty import difficulty, look, watch_table
from dare.runs.difficulty import Filter, read
from dare.runs.folder import RunFolder

app = typer.Typer()
app.command()(difficulty)
COUNT = 60


def columns(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    rates = rng.random(COUNT)
    rates[:3] = 0.0, 0.5, 1.0
    visits = rng.integers(0, 4, COUNT)
    return {
        "id": [f"{row:016x}" for row in range(COUNT)],
        "source": [("gsm8k", "math")[row % 2] for row in range(COUNT)],
        "level": [str(row % 5 + 1) for row in range(COUNT)],
        "difficulty": rates,
        "tier": (rates >= 0.3).astype(np.uint8) + (rates > 0.8),
        "evidence": rng.random(COUNT) * 32,
        "estimate": np.where(visits > 0, "dare", "forecast"),
        "visits": visits,
        "last_step": np.where(visits > 0, 7, -1),
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    RunFolder(tmp_path).write_table(columns())
    return tmp_path


def test_tiers_are_shown_where_they_are_on(run: Path) -> None:
    for text, shown in {
        "curriculum: {tiers: true}": True,
        "curriculum: {tiers: false}": False,
    }.items():
        (run / "config.yaml").write_text(text)
        page = call(str(run))
        assert ("medium" in page, "tier" in page) == (shown, shown)
        assert "\nseen " in page
    with pytest.raises(InvalidInput, match="tiers are off"):
        call(str(run), "--tier", "hard")
    for text in ("", "[]", "{", "curriculum: 3"):  # a run that does not say
        (run / "config.yaml").write_text(text)
        assert "medium" in call(str(run))


def call(*words: str) -> str:
    result = CliRunner().invoke(app, [*words], env={"COLUMNS": "100"})
    if result.exception is not None:
        raise result.exception
    return result.output


def rows(*words: str) -> list[dict[str, Any]]:
    return json.loads(call(*words, "--json", "--limit", "1000"))["rows"]


def test_the_summary_counts_what_is_there(run: Path) -> None:
    held = columns()
    figures = json.loads(call(str(run), "--json"))
    assert figures["prompts"] == figures["of"] == COUNT
    for code, name in enumerate(("easy", "medium", "hard")):
        assert figures["tiers"][name] == sum(held["tier"] == code)
    assert figures["coverage"] == sum(held["visits"] > 0) / COUNT
    assert figures["mean"] == pytest.approx(sum(held["difficulty"]) / COUNT)
    assert figures["last_step"] == 7
    assert len(figures["rows"]) == 10


def test_the_histogram_against_a_loop(run: Path) -> None:
    held = columns()
    bins = json.loads(call(str(run), "--json"))["histogram"]
    assert len(bins) == 20
    assert sum(line["count"] for line in bins) == COUNT
    for place, line in enumerate(bins):
        inside = [
            code
            for rate, code in zip(held["difficulty"], held["tier"], strict=True)
            if min(int(rate * 20), 19) == place
        ]
        assert line["count"] == len(inside)
        assert [line[name] for name in ("easy", "medium", "hard")] == [
            inside.count(code) for code in range(3)
        ]


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        (["--tier", "hard"], lambda row: row["tier"] == "hard"),
        (["--tier", "easy", "--tier", "hard"], lambda row: row["tier"] != "medium"),
        (["--source", "math"], lambda row: row["source"] == "math"),
        (["--level", "2", "--level", "3"], lambda row: row["level"] in "23"),
        (["--seen"], lambda row: row["visits"] > 0),
        (["--unseen"], lambda row: row["visits"] == 0),
        (["--min", "0.2", "--max", "0.6"], lambda row: 0.2 <= row["difficulty"] <= 0.6),
        (["--seen", "--source", "gsm8k"], lambda row: row["visits"] and row["source"] == "gsm8k"),
    ],
)
def test_filters(run: Path, words: list[str], passes: Any) -> None:
    everything = rows(str(run))
    found = rows(str(run), *words)
    assert 0 < len(found) < COUNT
    assert {row["id"] for row in found} == {row["id"] for row in everything if passes(row)}


def test_sorting(run: Path) -> None:
    hardest = [row["difficulty"] for row in rows(str(run))]
    assert hardest == sorted(hardest, reverse=True)
    found = rows(str(run), "--sort", "visits")
    assert found == sorted(found, key=lambda row: (row["visits"], row["id"]))
    found = rows(str(run), "--sort", "evidence:desc")
    assert found == sorted(found, key=lambda row: -row["evidence"])
    assert len(json.loads(call(str(run), "--json", "--limit", "3"))["rows"]) == 3
    whole = json.loads(call(str(run), "--json", "--limit", "9" * 20))["rows"]
    assert len(whole) == len(json.loads(call(str(run), "--json", "--limit", "1000"))["rows"])


def test_exports_hold_all_that_pass_in_order(run: Path, tmp_path: Path) -> None:
    expected = rows(str(run), "--tier", "medium")
    for name in ("some.csv", "deep/some.parquet"):
        path = tmp_path / name
        shown = call(str(run), "--tier", "medium", "--limit", "1", "--out", str(path))
        assert f"wrote {len(expected)} prompts" in shown
        if path.suffix == ".csv":
            with open(path, encoding="utf-8", newline="") as lines:
                found = list(csv.DictReader(lines))
            assert [float(row["difficulty"]) for row in found] == [
                row["difficulty"] for row in expected
            ]
        else:
            found = pyarrow.parquet.read_table(path).to_pylist()
            assert found == expected
        assert [row["id"] for row in found] == [row["id"] for row in expected]


def test_the_page_shows_bars_summary_and_list(run: Path) -> None:
    page = call(str(run), "--limit", "2")
    assert "█" in page
    assert "0.95 - 1.00" in page
    assert f"{COUNT} of {COUNT} prompts" in page
    assert "58 more" in page
    nobody = call(str(run), "--min", "0.00001", "--max", "0.00002")
    assert "none passes the filters" in nobody


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sort", "dificulty"], "did you mean 'difficulty'"),
        (["--sort", "visits:down"], "asc or desc"),
        (["--tier", "hrd"], "did you mean 'hard'"),
        (["--source", "mat"], "did you mean 'math'"),
        (["--level", "9"], "choose one of 1, 2"),
        (["--min", "0.7", "--max", "0.2"], "failure rate"),
        (["--limit", "-1"], "negative"),
        (["--out", "table.xlsx"], ".csv or .parquet"),
        (["--watch", "--json"], "neither"),
    ],
)
def test_bad_words_are_named(run: Path, words: list[str], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        call(str(run), *words)
    assert message in str(error.value)


ODD: dict[str, list[Any]] = {
    "texts": ["[/x]"],
    "lists": [["x"]],
    "nothing": [None],
    "below nothing": [-5.0],
    "no number": [float("nan")],
    "bytes": [b"\xff"],
}


@pytest.mark.parametrize("name", ["id", "difficulty", "tier", "visits", "last_step"])
@pytest.mark.parametrize("odd", [*ODD, "gone", "twice"])
def test_a_table_of_another_kind_is_one_line(name: str, odd: str, run: Path) -> None:
    if (name, odd) in (("id", "texts"), ("id", "below nothing"), ("id", "no number")):
        return  # a name may be any text or number
    held = pyarrow.table(columns())
    own = held[name]
    if odd != "twice":
        held = held.drop_columns([name])
    if odd != "gone":
        held = held.append_column(name, pyarrow.array(ODD[odd] * COUNT) if odd in ODD else own)
    pyarrow.parquet.write_table(held, run / "difficulty.parquet")
    with pytest.raises(InvalidInput, match=r"is not a difficulty table|no complete"):
        call(str(run))


@pytest.mark.parametrize(
    "held",
    [{"id": ["a"]}, {"prompt": ["a"]}, {"id": [["a"]], "prompt": ["x"]}],
)
def test_texts_of_prompts_that_are_damaged_are_left_out(held: dict[str, Any], run: Path) -> None:
    RunFolder(run).write_table(held, "prompts.parquet")
    assert "0000000000" in call(str(run))


def test_a_wrong_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is no folder"):
        call(str(tmp_path / "nothing"))
    with pytest.raises(InvalidInput, match=r"no complete difficulty\.parquet yet"):
        call(str(tmp_path))
    pyarrow.parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "difficulty.parquet")
    with pytest.raises(InvalidInput, match="not a difficulty table"):
        call(str(tmp_path))


def test_watching_waits_and_follows_replacements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No table, half a table, a table, its successor: the last whole one is what is seen."""
    seen: list[bool] = []
    path = tmp_path / "difficulty.parquet"

    def looked() -> Any:
        page = look(tmp_path, Filter(), "difficulty", 1)
        seen.append(page is not None)
        return page

    def slept(_: float) -> None:
        if len(seen) == 1:
            RunFolder(tmp_path).write_table(columns())
            whole = path.read_bytes()
            path.write_bytes(whole[: len(whole) // 2])
        elif len(seen) in (2, 3):
            RunFolder(tmp_path).write_table(columns(len(seen)))
        elif len(seen) == 4:
            path.write_bytes(b"")
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", slept)
    watch_table(looked, 0.01)
    assert seen == [False, False, True, True, False]
    assert f"{COUNT} of {COUNT} prompts" in capsys.readouterr().out


def test_reading_is_of_one_version(run: Path) -> None:
    table = read(run)
    assert table is not None
    assert set(table["tier"].to_pylist()) == {"easy", "medium", "hard"}


def test_prompts_are_listed_by_their_text_where_the_run_left_it(run: Path) -> None:
    texts = [f"Compute {row} + 1.\n\x1b[31mNow." for row in range(COUNT)]
    ids = columns()["id"]
    RunFolder(run).write_table({"id": ids, "prompt": texts}, "prompts.parquet")
    shown = call(str(run), "--limit", "3", "--sort", "id:asc")
    assert "Compute 0 + 1. ␛[31mNow." in shown
    assert ids[0] not in shown
    assert rows(str(run), "--sort", "id:asc")[2]["prompt"] == texts[2]
    assert "the last in step 8" in shown  # people count from 1
