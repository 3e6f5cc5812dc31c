"""Data sets that are none, 150 of them: row and column are named before anything is generated."""

from __future__ import annotations

import collections
import csv
import datetime
import decimal
import gzip
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
import torch

import tiny
from dare import InvalidInput
from dare.data.schema import training_rows
from dare.training.prompts import PromptStore

ROW = {"prompt": "1+1=", "answer": "2", "chance": 0.5}


class Unprintable:
    """An object that does not know how to show itself."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Quitting:
    """An object that ends the script where it is asked for anything."""

    def __str__(self) -> str:
        sys.exit(0)

    __repr__ = __len__ = __bool__ = __str__  # type: ignore[assignment]


class Sized:
    """An object that has no length."""

    def __len__(self) -> int:
        raise OverflowError("too long")


class Text(str):
    """A text that cannot be written."""

    def encode(self, *_: Any) -> bytes:  # type: ignore[override]
        raise RuntimeError("no bytes")


class Turns(list[Any]):
    """Messages that cannot be read."""

    def __iter__(self) -> Iterator[Any]:
        sys.exit(0)


class Turn(dict[str, Any]):
    """A message that cannot be read."""

    def get(self, *_: Any) -> Any:
        raise KeyError("role")


class Ending:
    """Rows whose second ends the script."""

    def __getitem__(self, place: int) -> dict[str, Any]:
        return dict(ROW) if place == 0 else sys.exit(0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield self[0]
        yield self[1]


class Broken(dict[str, Any]):
    """A row that cannot be read."""

    def __iter__(self) -> Iterator[str]:
        raise OSError("the share is gone")

    keys = items = __iter__  # type: ignore[assignment]


class Endless:
    """Rows of which the second cannot be had."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield dict(ROW)
        raise ConnectionError("the hub is away")


class Indexed:
    """Rows by number, without an end, as a torch data set may have them."""

    def __getitem__(self, place: int) -> dict[str, Any]:
        return dict(ROW)


class Sealed:
    """Says that it has rows and does not give them."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        raise TypeError("not twice")


Problem = collections.namedtuple("Problem", "prompt answer")


async def later() -> Any:
    """Rows to be awaited."""
    yield dict(ROW)


def with_row(**changes: Any) -> list[dict[str, Any]]:
    """Four rows of which the third is changed."""
    rows = [{**ROW, "prompt": f"{place}+1="} for place in range(4)]
    rows[2] = {key: value for key, value in {**rows[2], **changes}.items() if value is not ...}
    return rows


def turn(**changes: Any) -> list[dict[str, Any]]:
    return with_row(prompt=[{"role": "user", "content": "1+1=", **changes}])


SETS: list[tuple[str, Any]] = [
    # not rows
    ("{field}", {"prompt": ["1+1="], "answer": ["2"]}),
    ("{field}", {"train": [ROW], "test": [ROW]}),
    ("{field}", datasets.DatasetDict(train=datasets.Dataset.from_list([ROW]))),
    ("{field}", "train.jsonl"),
    ("{field}", b"train.jsonl"),
    ("{field}", 12),
    ("{field}", 1.5),
    ("{field}", True),
    ("{field}", object()),
    ("{field}", len),
    ("{field}", Unprintable()),
    ("{field}", dict),
    ("{field}", []),
    ("{field}", ()),
    ("{field}", iter([])),
    ("{field}", datasets.Dataset.from_list([])),
    ("{field}", pd.DataFrame()),
    ("{field}[0]", pd.DataFrame([ROW])),
    ("{field}[0]", np.arange(4)),
    ("{field}[0]", np.array([["a", "b"]])),
    ("{field}[0]", torch.ones(3)),
    ("{field}[0]", ["1+1=", "2+2="]),
    ("{field}[0]", [None]),
    ("{field}[0]", [3, 4]),
    ("{field}[0]", [["1+1=", "2"]]),
    ("{field}[0]", [("prompt", "1+1=")]),
    ("{field}[0]", {"1+1="}),
    ("{field}[0]", zip(["1+1="], ["2"], strict=True)),
    ("{field}[0]", [Unprintable()]),
    ("{field}[0]", [{0: "1+1=", 1: "2"}]),
    ("{field}[0]", [{None: "1+1=", **ROW}]),
    ("{field}[0]", [Broken(ROW)]),
    ("{field}[1]", Endless()),
    ("{field}[1]", Ending()),
    ("{field}[1]", [ROW, None]),
    ("{field}[1]", [ROW, "1+1="]),
    ("{field}[1]", [ROW, [ROW]]),
    # rows of other libraries, and what is nearly rows
    ("{field}", Indexed()),
    ("{field}", later()),
    ("{field}", later),
    ("{field}", Path("train.jsonl")),
    ("{field}", pyarrow.table({"prompt": ["1+1="]})),
    ("{field}", ValueError("no data")),
    ("{field}", datasets.IterableDataset.from_generator(lambda: iter([]))),
    ("{field}[0]", Sealed()),
    ("{field}[0]", pd.Series(["1+1="])),
    ("{field}[0]", [pd.Series(ROW)]),
    ("{field}[0]", [Problem("1+1=", "2")]),
    ("{field}[0]", np.array([("1+1=", 2)], dtype=[("prompt", "U4"), ("answer", "i4")])),
    ("{field}[0]", io.StringIO(json.dumps(ROW))),
    ("{field}[0]", csv.reader(["prompt,answer", "1+1=,2"])),
    ("{field}[0]", [ROW.items()]),
    ("{field}[0]", memoryview(b"1+1=")),
    ("{field}[0]", [{b"prompt": b"1+1="}]),
    ("{field}[0]", [{("prompt", "answer"): ("1+1=", "2")}]),
    ("{field}", [{**ROW, "image": b"png"}]),
    ("{field}", [{**ROW, "images": []}]),
    # no prompt
    ("{field}", [{}]),
    ("{field}", [{"question": "1+1="}]),
    ("{field}", [{"Prompt": "1+1=", "answer": "2"}]),
    ("{field}", datasets.Dataset.from_dict({"text": ["a"], "chance": [0.5]})),
    ("{field}[2]['prompt']", with_row(prompt=...)),
    *(("{field}[2]['prompt']", with_row(prompt=value)) for value in (
        None, 7, 0.5, True, b"1+1=", "", "  ", "\n\t", {}, {"role": "user", "content": "1"},
        ("1+1=",), [], ["1+1="], [[]], [None], float("nan"), Unprintable(), np.array(["1+1="]),
        [{"role": "user"}], [{"content": "1"}], [{"from": "human", "value": "1"}], "\ud800",
        "\u200b", "\x00\ufeff", bytearray(b"1+1="), datetime.date(2020, 1, 1), pd.NA, "\u3000",
        torch.ones(2, 2),
        [("user", "1+1=")], [[{"role": "user", "content": "1"}]],
        [{"role": "user", "content": "1"}, None], [{"role": "user", "content": " "}],
    )),
    *(("{field}[2]['prompt']", turn(**change)) for change in (
        {"content": None}, {"content": 5}, {"content": ["1"]}, {"content": [{"type": "text"}]},
        {"content": {}}, {"role": ""}, {"role": "\ud800"}, {"role": None},
        {"role": 3}, {"role": ["user"]}, {"content": "\udfff"},
    )),
    # answers and other columns
    *(("{field}[2]['answer']", with_row(answer=value)) for value in (
        None, "", " ", "\n", "\u200b", float("nan"), ..., Unprintable(), "\ud834",
        np.float32("nan"), decimal.Decimal("NaN"), pd.NA, pd.NaT, [], {}, [None], b"",
        torch.tensor(float("nan")), np.array([]),
        # what no response can say, and objects that raise what they like
        float("inf"), -np.inf, decimal.Decimal("Infinity"), decimal.Decimal("sNaN"), [""],
        [float("nan")], (None,), torch.tensor([float("nan")]), {"a": None}, {"a": []}, len, dict,
        lambda: 2, 10**5000, Sized(), Quitting(),
    )),
    # they are looked at before solutions are compared with them
    *(("{field}[2]['answer']", [{"solution": "2", **row} for row in with_row(answer=value)])
      for value in (10**5000, Unprintable(), Quitting())),
    ("{field}[2]['solution']", with_row(solution="so it is 5\n\ud800 and more")),
    ("{field}[2]['tests']", with_row(tests=Quitting())),
    *(("{field}[2]['prompt']", with_row(prompt=value)) for value in (
        Text("1+1="), Turns([{"role": "user", "content": "1"}]), [Turn(role="user", content="1")],
    )),
    ("{field}[2]['level']", with_row(level=Quitting())),
    ("{field}[2]['level']", with_row(level=Unprintable())),
    ("{field}[2]['level']", with_row(level="\ud800")),
    ("{field}[2]['source']", with_row(source=Unprintable())),
    ("{field}[2]['source']", with_row(source="a\udc80")),
]  # fmt: skip


def test_there_are_a_hundred_and_fifty_of_them() -> None:
    assert len(SETS) + len(FILES) >= 150


@pytest.mark.parametrize("field", ["train_dataset", "eval_dataset"])
def test_data_given_in_python(field: str) -> None:
    tokens = tiny.tokenizer()
    for named, data in SETS:
        if field == "eval_dataset" and iter_once(data):
            continue  # read by the other test
        with pytest.raises(InvalidInput) as caught:
            PromptStore(data, tokens, None, field)
        assert caught.value.field == named.format(field=field), str(caught.value)
        assert "\n" not in str(caught.value)


def test_repeats_are_told_of_and_those_that_disagree_by_row(caplog: Any) -> None:
    rows = [{"prompt": f"{n}+1=", "gold": str(n + 1), "note": str(n)} for n in range(4)]
    again = [{**rows[1], "note": "x"}, {**rows[2], "gold": "7"}]
    for judged, lines in (((), 1), (("gold",), 2)):
        caplog.clear()
        store = PromptStore([*rows, *again], tiny.tokenizer(), None, "train_dataset", judged)
        assert len(store) == 4
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == lines
        assert told[0] == "training data: 6 rows have 4 prompts; repeats are merged"
    assert "row 5 has another gold than row 2, which counts" in told[1]
    assert "row 4" not in told[1]
    caplog.clear()
    PromptStore(rows, tiny.tokenizer(), None, "train_dataset", ("gold",))
    assert caplog.records == []


RUBRIC = {"rubric": "x", "chance": 0.5}


@pytest.mark.parametrize("first", ["zz", "1+1="])
@pytest.mark.parametrize("place", [0, 2, 3])
def test_every_column_of_any_row_is_there_whichever_row_lacks_it(first: str, place: int) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"{n}+2=", **RUBRIC} for n in range(3)]
    rows.insert(place, {"prompt": first, "chance": 0.5, "note": 1})
    store = PromptStore(rows, tiny.tokenizer())
    columns = store.columns(range(4))
    assert sorted(columns) == ["chance", "note", "rubric"]
    of_row = dict(zip((r["prompt"] for r in store.records), columns["rubric"], strict=True))
    assert of_row == {first: None, **{f"{n}+2=": "x" for n in range(3)}}


@pytest.mark.parametrize(
    "answer",
    [
        0,
        False,
        1e-9,
        10**4000,
        ["7", None],
        {"a": 0},
        np.arange(2),
        torch.tensor(2.0),
        "inf",
        "nan",
    ],
)
def test_what_can_be_an_answer_is_taken(answer: Any) -> None:
    store = PromptStore(with_row(answer=answer), tiny.tokenizer())
    assert any(record["answer"] is answer for record in store.records)


def test_an_answer_is_needed_by_every_row_whichever_has_one() -> None:
    rows = [{"prompt": "1+1="}, {"prompt": "2+1=", "answer": "3"}]
    for place, data in ((0, rows), (1, rows[::-1])):
        with pytest.raises(InvalidInput) as caught:
            PromptStore(data, tiny.tokenizer())
        assert caught.value.field == f"train_dataset[{place}]['answer']"


@pytest.mark.parametrize("field", ["train_dataset", "eval_dataset"])
@pytest.mark.parametrize("place", [0, 3])
def test_a_row_without_a_column_that_a_reward_needs_is_named(
    field: str, place: int, tmp_path: Path
) -> None:
    rows = [{**ROW, "prompt": f"{n}+1="} for n in range(4)]
    del rows[place]["chance"]
    given = {"data": rows} if field == "train_dataset" else {"eval_data": rows}
    with pytest.raises(InvalidInput, match="lottery needs it") as caught:
        tiny.trainer(tmp_path / "run", **given)
    assert (caught.value.field, caught.value.value) == (f"{field}[{place}]", "chance")
    assert not list(tmp_path.iterdir())
    rows[place]["chance"] = None  # that is for the reward to say
    tiny.trainer(tmp_path / "run", **given)


def test_rows_that_tests_judge_need_no_answer_nor_the_others_tests(tmp_path: Path) -> None:
    def score(completions: list[str], answer: list[str], tests: list[Any]) -> list[float]:
        return [0.0] * len(completions)

    program = {"prompt": "def f", "tests": [{"code": "assert f"}]}
    for rows in ([program, ROW], [ROW, program]):
        store = tiny.trainer(tmp_path, data=rows, reward=score).store
        assert sorted(store.names) == ["answer", "chance", "tests"]


def iter_once(data: Any) -> bool:
    return isinstance(data, Iterator)


@pytest.mark.parametrize("place", range(0, len(SETS), 9))
def test_a_trainer_refuses_it_whichever_set_it_is(place: int, tmp_path: Path) -> None:
    named, data = SETS[place]
    if iter_once(data):
        return
    for field, given in (("train_dataset", {"data": data}), ("eval_dataset", {"eval_data": data})):
        with pytest.raises(InvalidInput) as caught:
            tiny.trainer(tmp_path / "run", **given)
        if field == "eval_dataset" and isinstance(data, dict):  # sets by name: the first is told of
            named = f"{{field}}[{next(iter(data))!r}][0]"
        assert caught.value.field == named.format(field=field)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("field", "named"), [("train_dataset", "training"), ("eval_dataset", "evaluation")]
)
def test_what_the_reward_or_the_policy_cannot_use_says_which_data_and_row(
    field: str, named: str, tmp_path: Path
) -> None:
    def given(rows: list[Any]) -> dict[str, Any]:
        return {"data": rows} if field == "train_dataset" else {"eval_data": rows}

    trained = {} if field == "train_dataset" else {"data": [ROW]}
    rows = [{"prompt": "1+1=", "answer": "2"}]
    fix = rf"strict\(chance\) .*the {named} data has no such column"
    with pytest.raises(InvalidInput, match=fix):
        tiny.trainer(tmp_path, **trained, **given(rows), reward=strict)
    with pytest.raises(InvalidInput, match="exceed the context") as caught:
        tiny.trainer(tmp_path, **given(with_row(prompt="1+" * 400)))
    assert caught.value.field == f"{field}[2]['prompt']"


@pytest.mark.parametrize("asks", [{"eval_on_start": True}, {"eval_strategy": "epoch"}])
def test_an_evaluation_without_data_names_the_data_and_who_asks(
    asks: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=next(iter(asks))) as caught:
        tiny.trainer(tmp_path / "run", **asks)
    assert caught.value.field == "eval_dataset (eval_data of a recipe)"


def strict(completions: list[str], chance: list[float]) -> list[float]:
    return [0.0] * len(completions)


# --- files ----------------------------------------------------------------------------------------


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(values: Any, *names: str) -> bytes:
    sink, names = io.BytesIO(), names or ("prompt",)
    pyarrow.parquet.write_table(
        pyarrow.table([pyarrow.array(values)] * len(names), names=list(names)), sink
    )
    return sink.getvalue()


FILES: list[tuple[str, bytes]] = [
    ("empty.jsonl", b""),
    ("blank.jsonl", b"\n\n\n"),
    ("words.jsonl", b"not a row\n"),
    ("cut.jsonl", lines(ROW) + b'{"prompt": "1+'),
    ("numbers.jsonl", lines(1, 2)),
    ("lists.jsonl", lines(["1+1=", "2"])),
    ("null.jsonl", lines(None)),
    ("bytes.jsonl", b"\xff\xfe\x00\x01"),
    ("latin.jsonl", b'{"prompt": "caf\xe9"}\n'),
    ("nothing.jsonl", lines({})),
    ("other.jsonl", lines({"text": "1+1="})),
    ("void.jsonl", lines({"prompt": ""})),
    ("number.jsonl", lines({"prompt": 7, "answer": "2"})),
    ("turns.jsonl", lines({"prompt": [{"role": "user"}]})),
    ("deep.jsonl", b"[" * 100_000),
    ("again.jsonl", b'{"prompt": "1+1=", "prompt": "2+2="}\n'),
    ("again.json", b'[{"prompt": "1+1=", "answer": "2", "answer": "3"}]'),
    ("inside.jsonl", b'{"prompt": "1+1=", "extra": {"a": 1, "a": 1}}\n'),
    ("half.json", b'[{"prompt": "1+1="},'),
    ("scalar.json", b"3"),
    ("text.json", b'"rows"'),
    ("bad.json", b"{]"),
    ("empty.csv", b""),
    ("head.csv", b"prompt,answer\n"),
    ("ragged.csv", b"prompt,answer\n1+1=,2,3\n"),
    ("short.csv", b"prompt,answer\n1+1=\n"),
    ("twice.csv", b"prompt,prompt\na,b\n"),
    ("quote.csv", b'prompt,answer\n"1+1=,2\n'),
    ("zero.csv", b"prompt,answer\n\x00\xff,2\n"),
    ("fake.parquet", b"PAR1 but not really"),
    ("none.parquet", b""),
    ("fake.jsonl.gz", b"not gzip"),
    ("cut.jsonl.gz", gzip.compress(lines(ROW) * 50)[:-20]),
    ("kind.xlsx", b"PK"),
    ("kind.txt", b"1+1="),
    ("wide.jsonl", lines(ROW).decode().encode("utf-16")),
    ("nan.jsonl", b'{"prompt": NaN}\n'),
    ("page.jsonl", b"<!DOCTYPE html>\n<html></html>\n"),
    ("pointer.jsonl", b"version https://git-lfs.github.com/spec/v1\nsize 9\n"),
    ("two.jsonl", b'{"prompt": "1"} {"prompt": "2"}\n'),
    ("quotes.jsonl", b"{'prompt': '1'}\n"),
    ("surrogate.jsonl", b'{"prompt": "\\ud800"}\n'),
    ("columns.json", b'{"prompt": ["1", "2"], "answer": ["1"]}'),
    ("splits.json", json.dumps({"train": [ROW]}).encode()),
    ("nested.json", json.dumps([[ROW]]).encode()),
    ("semicolon.csv", b"prompt;answer\n1+1=;2\n"),
    ("headless.csv", b"1+1=,2\n"),
    ("cut.parquet", parquet(["1+1="])[:-12]),
    ("empty.parquet", parquet(pyarrow.array([], pyarrow.string()))),
    ("twice.parquet", parquet(["a"], "prompt", "prompt")),
    ("other.parquet", parquet(["1+1="], "text")),
    ("numbers.parquet", parquet([1, 2])),
    ("bytes.parquet", parquet([b"1+1="])),
    ("flip.parquet", b"PAR1" + b"\xff" * 20 + parquet(["1+1="] * 99)[24:]),
    ("empty.jsonl.gz", gzip.compress(b"")),
    ("suffixless", lines(ROW)),
    ("kind.pkl", b"\x80\x04N."),
]


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("split", {"split": "test"}),
        ("config", {"config": "main"}),
        ("columns.id", {"columns": {"id": "nowhere"}}),
        ("columns.answer", {"columns": {"prompt": "prompt", "answer": "prompt"}}),
    ],
)
def test_what_a_source_says_of_a_file_and_is_not_there(
    field: str, more: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "good.jsonl"
    path.write_bytes(lines(ROW))
    with pytest.raises(InvalidInput) as caught:
        training_rows({"path": str(path), **more})
    assert caught.value.field == field


@pytest.mark.parametrize(("name", "content"), FILES, ids=[name for name, _ in FILES])
def test_files(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        training_rows(str(path))
    assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert sys.getrecursionlimit() < 10_000
