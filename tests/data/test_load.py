"""Rows from every kind of place, and what is said when they cannot be read."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from dare.data import read_rows
from dare.errors import InvalidInput

ROWS = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1), "level": n % 3} for n in range(5)]


def jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def plain(rows: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in rows]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.json.gz", "a.ndjson"])
@pytest.mark.parametrize("array", [False, True])
def test_json_lines_and_arrays_under_any_name(tmp_path, name, array):
    content = json.dumps(ROWS, indent=2).encode() if array else jsonl(ROWS)
    path = write(tmp_path / name, b"\xef\xbb\xbf" + content)
    assert plain(read_rows(path)) == ROWS
    assert [row.number for row in read_rows(path)] == [1, 2, 3, 4, 5]


def test_parquet_csv_patterns_and_iterables(tmp_path):
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    text = "prompt,answer,level\n" + "".join(f"{r['prompt']},{r['answer']},\n" for r in ROWS)
    write(tmp_path / "b.csv", text.encode())
    assert plain(read_rows(tmp_path / "a.parquet")) == ROWS
    assert [row["level"] for row in read_rows(tmp_path / "b.csv")] == [None] * 5
    write(tmp_path / "a2.jsonl", jsonl(ROWS[:2]))
    assert len(list(read_rows(f"{tmp_path}/a*"))) == 7
    assert plain(read_rows(iter(ROWS))) == ROWS
    assert plain(read_rows({"path": str(tmp_path / "a.parquet")})) == ROWS


def test_an_address_is_read_like_a_file(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/rows/a.jsonl.gz", gzip.compress(jsonl(ROWS[:2])))
    memory.pipe("/rows/b.jsonl.gz", gzip.compress(jsonl(ROWS[2:])))
    assert plain(read_rows("memory://rows/*.jsonl.gz")) == ROWS
    with pytest.raises(InvalidInput, match=r"rows/none\.jsonl.*no such file"):
        list(read_rows("memory://rows/none.jsonl"))


def test_a_hub_id_is_streamed_with_its_split(monkeypatch):
    import datasets

    asked: dict[str, Any] = {}

    def load_dataset(path: str, **options: Any) -> Any:
        asked.update(options, path=path)
        return iter(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = {"path": "owner/set", "config": "main", "split": "test"}
    assert plain(read_rows(source)) == ROWS
    assert (asked["path"], asked["name"], asked["split"]) == ("owner/set", "main", "test")
    assert asked["streaming"] is True

    def broken(path: str, **options: Any) -> Any:
        raise ConnectionError("no route to the hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", broken)
    with pytest.raises(InvalidInput, match=r"owner/set.*no route to the hub"):
        list(read_rows("owner/set"))


def test_columns_are_renamed_also_out_of_nested_ones():
    rows = [{"q": "1+1?", "reward_model": {"ground_truth": "2", "style": "rule"}}]
    found = plain(read_rows(rows, columns={"prompt": "q", "answer": "reward_model.ground_truth"}))
    assert found[0]["prompt"] == "1+1?"
    assert found[0]["answer"] == "2"
    with pytest.raises(InvalidInput, match=r"row 1: prompt = 'question'.*it has q, reward_model"):
        list(read_rows(rows, columns={"prompt": "question"}))


def test_rows_that_are_conversations_have_numbered_columns(tmp_path):
    turns = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "ground_truth": {"value": "2"}}]
    path = write(tmp_path / "a.json", json.dumps([turns]).encode())
    found = plain(read_rows(path, columns={"prompt": "0.value", "answer": "1.ground_truth.value"}))
    assert found[0]["prompt"] == "1+1?"
    assert found[0]["answer"] == "2"


def test_lines_that_are_lists_are_rows_and_not_one_array(tmp_path):
    content = jsonl([[{"value": f"q{n}"}, {"value": str(n)}] for n in range(3)])
    found = plain(read_rows(write(tmp_path / "a.jsonl", content), columns={"prompt": "0.value"}))
    assert [row["prompt"] for row in found] == ["q0", "q1", "q2"]


LONG = "7" * 9000
GOOD = b'{"prompt": "a", "answer": "1"}\n'
BAD: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.jsonl", b"", "has no rows"),
    "blank lines": ("a.jsonl", b"\n\n \n", "has no rows"),
    "empty array": ("a.json", b"[]", "has no rows"),
    "not json": ("a.jsonl", GOOD + b"{'a': 1}\n", "line 2.*is not JSON"),
    "cut off line": ("a.jsonl", GOOD + GOOD[:-9], "line 2.*cut off"),
    "cut off array": ("a.json", b'[{"a": 1}, {"a"', "row 2.*cut off"),
    "unclosed array": ("a.json", b'[{"a": 1}', "row 2.*cut off"),
    "no comma": ("a.json", b'[{"a": 1} {"a": 2}]', "row 2.*comma"),
    "no object": ("a.jsonl", GOOD + b'"text"\n', "line 2 = 'text'.*object"),
    "list row": ("a.jsonl", GOOD + b"[1, 2]\n", r"line 2 = \[1, 2\].*object"),
    "null row": ("a.json", b"[null]", "row 1 = None.*object"),
    "nan": (
        "a.jsonl",
        GOOD + b'{"prompt": "a", "x": {"y": [1, NaN]}}\n',
        r"line 2: x\.y\[1\] = 'NaN'",
    ),
    "infinity": ("a.json", b'[{"level": -Infinity}]', "row 1: level = '-Infinity'"),
    "long integer": (
        "a.jsonl",
        GOOD + b'{"prompt": "a", "answer": %s}\n' % LONG.encode(),
        "line 2: answer = '777.*9,000 digits.*in quotes",
    ),
    "long integer in array": (
        "a.json",
        b'[{"tests": [{"output": -%s}]}]' % LONG.encode(),
        r"row 1: tests\[0\]\.output = '-777.*9,000 digits",
    ),
    "bad utf-8": ("a.jsonl", GOOD + b'{"prompt": "caf\xe9"}\n', "line 2.*is not UTF-8"),
    "bad utf-8 in array": ("a.json", b'[{"prompt": "caf\xe9"}]', "row 1.*is not UTF-8"),
    "deep": ("a.jsonl", GOOD + b'{"a": ' + b"[" * 99_999 + b"\n", "line 2"),
    "no parquet": ("a.parquet", b"PAR1 not really", "no readable Parquet"),
    "ragged csv": ("a.csv", b"prompt,answer\na,1\nb\n", "row 2.*2 cells"),
    "csv not utf-8": ("a.csv", b"prompt,answer\ncaf\xe9,1\n", "row 1.*UTF-8"),
    "more after the array": ("a.json", b'[{"a": 1}]\n{"a": 2}', "after row 1.*goes on"),
    "csv with a name twice": ("a.csv", b"prompt,prompt\na,b\n", "header.*'prompt'"),
    "unknown kind": ("a.xlsx", b"x", "unknown kind"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_named(tmp_path, name):
    file, content, message = BAD[name]
    path = write(tmp_path / file, content)
    with pytest.raises(InvalidInput, match=f"(?s){message}") as caught:
        list(read_rows(path))
    assert len(str(caught.value)) < 1000
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("keep", "message"), [(-9, "damaged after line [1-9]"), (40, "damaged after")]
)
def test_broken_gzip_is_named_with_the_last_good_row(tmp_path, keep, message):
    whole = gzip.compress(jsonl([{"prompt": f"{n * 7919}", "answer": "1"} for n in range(5000)]))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole[:keep])
    with pytest.raises(InvalidInput, match=message):
        list(read_rows(path))
    path.write_bytes(b"not gzip at all\n")
    with pytest.raises(InvalidInput, match="damaged"):
        list(read_rows(path))


def test_places_that_are_not_there(tmp_path):
    for source, message in (
        (tmp_path / "no.jsonl", "no such file"),
        (tmp_path, "is a folder"),
        ("no hub id!", "neither a file nor a hub id"),
        (f"{tmp_path}/*.parquet", "no such file"),
        (17, "name a file or a hub id"),
        ([1, 2], "row 1 = 1"),
        ({"path": "a.jsonl", "spilt": "test"}, "did you mean 'split'"),
    ):
        with pytest.raises(InvalidInput, match=message):
            list(read_rows(source))  # type: ignore[arg-type]


def test_a_row_larger_than_the_piece_that_is_read(tmp_path):
    rows = [{"prompt": "x" * 3_000_000}, {"prompt": "y"}, {"prompt": "z" * 1_500_000}]
    path = write(tmp_path / "a.json", json.dumps(rows).encode())
    assert plain(read_rows(path)) == rows


def test_the_first_row_comes_before_the_last_is_read(tmp_path):
    path = write(tmp_path / "a.jsonl", GOOD + b"broken")
    assert dict(next(iter(read_rows(path)))) == {"prompt": "a", "answer": "1"}
    assert sys.get_int_max_str_digits() == 4300  # the limit of the process is nobody's to change
