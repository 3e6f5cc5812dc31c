"""Odd folders, odd names, odd numbers: a page or one line that says why not, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from dare.errors import InvalidInput
from dare.report.document import content, embedded, page, write_report
from dare.runs.found import find_runs
from dare.runs.reader import read_run


def shown(*words: object) -> dict[str, Any]:
    return content([read_run(one) for one in find_runs([str(word) for word in words])])


def blocks(held: dict[str, Any], name: str) -> dict[str, Any]:
    section = next(one for one in held["sections"] if one["id"] == name)
    return {block.get("id"): block for block in section.get("blocks") or section["by_run"][0]}


def rewrite(path: Path, change: Any) -> None:
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    path.write_text("".join(json.dumps(change(record)) + "\n" for record in records))


@pytest.fixture
def mine(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "mine"))


@pytest.mark.parametrize("out", [".", "/", "", "file/x.html", "a" * 300, "a/../.."])
def test_a_place_that_cannot_be_written_is_one_message(
    out: str, run: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="--out"):
        write_report([str(run)], Path(out))
    assert sorted(os.listdir(tmp_path)) in (["file"], ["a", "file"])


def test_a_name_as_long_as_names_may_be_is_written(run: Path, tmp_path: Path) -> None:
    write_report([str(run)], tmp_path / ("a" * 250 + ".html"))
    assert [len(path.name) for path in tmp_path.iterdir()] == [255]


@pytest.mark.parametrize("word", ["", "=", "x=", "a" * 5000, "x=" + "a" * 5000])
def test_words_that_are_no_folder(word: str) -> None:
    with pytest.raises(InvalidInput, match="run = "):
        find_runs([word])


@pytest.mark.parametrize(
    "text",
    ["when: 2020-13-45\n", "a: &a {b: *a}\n", "curriculum: &a {b: *a}\n", "[" * 200_000],
    ids=["no date", "circle", "circle of settings", "deep"],
)
def test_settings_that_cannot_be_read_are_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=r"config\.yaml"):
        shown(tmp_path)


def test_infinite_and_boundless_numbers_are_gaps(mine: Path) -> None:
    rewrite(
        mine / "metrics.jsonl",
        lambda line: {**line, "memory_mb": float("inf"), "seconds": {"plan": float("inf")}},
    )
    rewrite(
        mine / "selections.jsonl", lambda line: {**line, "group_size": [1e13] * len(line["prompt"])}
    )
    rewrite(
        mine / "eval.jsonl",
        lambda line: {
            **line, "accuracy": 1.7, "by_level": {"1": {"accuracy": "x", "tokens": []}, "2": 3}
        },
    )  # fmt: skip
    (mine / "eval.json").write_text('{"benchmarks": {"b": {"accuracy": Infinity, "low": NaN}}}')
    held = shown(mine)
    embedded(held)
    tiles = {entry[0]: entry[1] for entry in blocks(held, "overview")["tiles"]["entries"]}
    assert tiles["Peak memory"] == "-"
    assert tiles["Time"] == "0 s"
    assert not [t for t in blocks(held, "curves")["accuracy"]["traces"] if "fill" in t]
    assert blocks(held, "evaluation")["benchmarks eval.json"]["rows"][0][1] == "-"


def test_levels_that_are_no_numbers_do_not_stop_a_comparison(mine: Path, run: Path) -> None:
    odd = {"1": {"accuracy": "x", "tokens": [1]}}
    rewrite(mine / "eval.jsonl", lambda line: {**line, "by_level": odd})
    held = shown(f"a={mine}", f"b={run}")
    assert "comparison-curves" in blocks(held, "comparison")


def test_a_tier_that_nobody_knows_is_an_error(mine: Path) -> None:
    path = mine / "difficulty.parquet"
    table = pyarrow.parquet.read_table(path)
    codes = pyarrow.array([9] * table.num_rows)
    place = table.column_names.index("tier")
    pyarrow.parquet.write_table(table.set_column(place, "tier", codes), path)
    with pytest.raises(InvalidInput, match=r"difficulty\.parquet"):
        shown(mine)


def test_problems_without_a_level_have_a_name(mine: Path) -> None:
    rewrite(
        mine / "eval.jsonl",
        lambda line: {
            **line,
            "by_level": {"" if name == "1" else name: p for name, p in line["by_level"].items()},
        },
    )
    held = shown(mine)
    names = [trace["name"] for trace in blocks(held, "levels")["level-accuracy"]["traces"]]
    assert "level none" in names
    rows = [row[0] for row in blocks(held, "evaluation")["evaluation-levels"]["rows"]]
    assert rows == ["2", "3", "4", "5", "none"]


def test_names_of_folders_are_made_legible(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xe2\x80\xae<b>\x1b[31m \xff")
    shutil.copytree(run, folder)
    held = shown(folder)
    assert held["runs"][0]["name"] == "⟨U+202E⟩<b>␛[31m ⟨U+DCFF⟩"
    page(held).encode("utf-8")


def test_methods_keep_their_colour_when_a_run_is_left_out(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "early")
    (tmp_path / "early" / "eval.jsonl").unlink()
    held = shown(
        f"early={tmp_path / 'early'}", f"a={run}", f"b={shutil.copytree(run, tmp_path / 'b')}"
    )
    colours = {one["name"]: one["colour"] for one in held["runs"]}
    ends = blocks(held, "comparison")["comparison-ends"]["traces"]
    assert {trace["name"]: trace["colour"] for trace in ends} == {
        name: colours[name] for name in ("a", "b")
    }


def test_a_study_is_shown_in_its_own_order(run: Path, tmp_path: Path) -> None:
    """The first method is what gains and speed-ups refer to, as in `dare compare`."""
    for name in ("dare", "grpo"):
        shutil.copytree(run, tmp_path / name / "seed-0")
        job = {"name": name, "seed": 0}
        (tmp_path / name / "seed-0" / "job.json").write_text(json.dumps(job))
    (tmp_path / "study.json").write_text('{"methods": ["grpo", "dare"]}')
    assert [one["method"] for one in shown(tmp_path)["runs"]] == ["grpo", "dare"]
    (tmp_path / "study.json").write_text("{")
    assert [one["method"] for one in shown(tmp_path)["runs"]] == ["dare", "grpo"]


def test_text_that_is_not_ascii_and_many_hints_keep_the_page_small(tmp_path: Path) -> None:
    with open(tmp_path / "samples.jsonl", "w", encoding="utf-8") as file:
        for step in range(300):
            sample = {"step": step, "tier": "easy", "reward": step % 2, "tokens": 9, "prompt": "p"}
            sample |= {"response": "漢字" * 2000, "hint": ["h" * 900] * 20}
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")
    (tmp_path / "metrics.jsonl").write_text("")
    assert len(embedded(shown(tmp_path))) < 4_000_000


def test_a_metric_that_is_logged_late_is_shown(mine: Path) -> None:
    rewrite(
        mine / "metrics.jsonl",
        lambda line: {**line, "temper": 1.5} if line["step"] > 3 else line,
    )
    held = next(one for one in shown(mine)["sections"] if one["id"] == "curves")
    assert "curve-temper" in [block["id"] for block in held["rest"]]


def test_a_comparison_needs_no_torch(run: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dare.report.document import write_report; "
        "write_report(sys.argv[1:3], Path(sys.argv[3])); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    words = [f"a={run}", f"b={shutil.copytree(run, tmp_path / 'b')}", tmp_path / "x.html"]
    subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True, timeout=600)
