"""Saved responses: columns are found, rows matched, verdicts compared, with no model at all."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from eval_worlds import DATA, lines, needs_data, sums

from dare.errors import InvalidInput
from dare.evaluation.benchmarks import benchmark, load_problems
from dare.evaluation.responses import ResponseFile
from dare.evaluation.run import evaluate
from dare.evaluation.sources import FromFile
from dare_sandbox import open_sandbox


def saved(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "saved.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def judged(folder: Path, *rows: dict[str, Any], **options: Any) -> tuple[dict[str, Any], FromFile]:
    source = FromFile(ResponseFile(saved(folder, *rows), **options))
    found = evaluate([sums(folder, 4)], source, folder / "out", {})
    return found["benchmarks"]["sums"], source


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": "s1", "responses": [r"\boxed{3}", r"\boxed{4}"]}],
        [{"task_id": "s1", "completion": t} for t in (r"\boxed{3}", r"\boxed{4}")],
        [{"problem": " 1+2=\n", "samples": [{"text": r"\boxed{3}"}, {"text": r"\boxed{4}"}]}],
        [{"id": "s1", "a": {"solution": r"\boxed{3}"}, "b": {"solution": r"\boxed{4}"}}],
    ],
)
def test_every_shape_is_read(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    one, source = judged(tmp_path, *rows)
    assert (one["problems"], one["missing"], one["samples"]) == (1, 3, 2)
    assert one["accuracy"] == 0.5
    assert source.file.unmatched() == []
    record = lines(tmp_path / "out" / "records.jsonl")[0]
    assert record["scores"] == [1.0, 0.0]
    assert record["tokens"] == record["finish"] == [None, None]


def test_several_models_are_told_apart(tmp_path: Path) -> None:
    row = {"big": {"solution": "A: 3", "is_correct": True}, "small": {"solution": "A: 4"}}
    one, _ = judged(tmp_path, {"id": "s1", **row})
    assert one["form"] == "line"
    assert {name: own["accuracy"] for name, own in one["by_name"].items()} == {"big": 1, "small": 0}
    assert one["pass_at_k"] is None
    assert one["labels"]["agreement"] == 1.0
    (tmp_path / "out" / "records.jsonl").unlink()
    one, _ = judged(tmp_path, {"id": "s1", **row}, column="small")
    assert (one["samples"], one["accuracy"]) == (1, 0.0)


def test_labels_of_ones_own_column(tmp_path: Path) -> None:
    rows = [{"id": f"s{n}", "response": r"\boxed{3}", "plus_status": "pass"} for n in (1, 2)]
    one, _ = judged(tmp_path, *rows, label="plus_status")
    assert one["labels"]["disagreements"] == [
        {"id": "s2", "response": 0, "here": False, "label": True}
    ]


def test_rows_that_answer_nothing_are_reported(tmp_path: Path) -> None:
    rows = [{"id": "s1", "response": r"\boxed{3}"}, {"id": "t1", "response": r"\boxed{3}"}]
    one, source = judged(tmp_path, *rows)
    assert one["problems"] == 1
    assert source.file.unmatched() == ["t1"]


def test_records_of_an_evaluation_can_be_scored_again(tmp_path: Path) -> None:
    row = {"id": "s1", "responses": [r"\boxed{3}"], "tokens": [7], "finish": ["length"]}
    judged(tmp_path, row, {"id": "s2", "response": r"\boxed{3}"})
    again = ResponseFile(tmp_path / "out" / "records.jsonl")
    found = evaluate([sums(tmp_path, 4)], FromFile(again), tmp_path / "again", {})
    one = found["benchmarks"]["sums"]
    assert (one["accuracy"], one["tokens"], one["truncated"]) == (0.5, 7.0, 1.0)
    assert again.match("other", load_problems(sums(tmp_path, 4))) == {}


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"id": "s1"}, {}, r"line 1: response .*--column"),
        ({"response": "x"}, {}, r"line 1 .*needs an id"),
        ({"id": "s1", "response": 3}, {}, r"line 1: response = 3: must be a text"),
        ({"id": "s1", "response": "x"}, {"column": "respons"}, "did you mean 'response'"),
        ({"id": "s1", "problem": "0+1=", "response": "x"}, {}, "the id s1 but the text of s0"),
    ],
)
def test_a_wrong_row_is_named(
    tmp_path: Path, row: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        judged(tmp_path, row, **options)
    assert not (tmp_path / "out" / "records.jsonl").exists()


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        ResponseFile(tmp_path / "absent.jsonl")
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a", "response": "b"}\n' * 9)[:-9])
    with pytest.raises(InvalidInput, match="damaged"):
        ResponseFile(path)


def part_of(name: str, folder: Path, count: int) -> Path:
    """The first rows of a public file of responses."""
    path = folder / f"{name}.jsonl"
    with gzip.open(DATA / "rollouts" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as rows:
        path.write_text("".join(itertools.islice(rows, count)), encoding="utf-8")
    return path


@needs_data
def test_math500_of_open_reasoner_zero(tmp_path: Path) -> None:
    source = FromFile(ResponseFile(part_of("math500_orz7b_t0", tmp_path, 100)))
    one = evaluate([benchmark("math500")], source, tmp_path / "out", {}, data_dir=DATA)
    one = one["benchmarks"]["math500"]
    assert (one["form"], one["problems"], one["missing"], one["unscored"]) == ("tag", 100, 400, 0)
    labels = one["labels"]
    # Their strict checker refuses other spellings of the gold; it accepts nothing that we refuse.
    assert labels["right_here_only"] > 5
    assert labels["right_by_labels_only"] == 0
    assert {"id": "test/precalculus/807.json", "response": 0, "here": True, "label": False} in (
        labels["disagreements"]
    )


@needs_data
def test_gsm8k_of_openai(tmp_path: Path) -> None:
    source = FromFile(ResponseFile(part_of("gsm8k_openai_example_solutions", tmp_path, 200)))
    one = evaluate([benchmark("gsm8k")], source, tmp_path / "out", {}, data_dir=DATA)
    one = one["benchmarks"]["gsm8k"]
    assert (one["form"], one["samples"], one["responses"]) == ("line", 4, 800)
    assert one["labels"]["agreement"] == 1.0
    accuracy = {name: own["accuracy"] for name, own in one["by_name"].items()}
    assert accuracy["175b_verification"] > accuracy["6b_finetuning"]


@needs_data
def test_humaneval_of_codegen_as_pass_at_k(tmp_path: Path) -> None:
    try:
        open_sandbox("auto")
    except InvalidInput as error:
        pytest.skip(str(error))
    with gzip.open(DATA / "rollouts/humaneval_codegen16b_100samples.jsonl.gz", "rt") as rows:
        row = json.loads(next(iter(rows)))
    path = saved(tmp_path, {**row, "samples": row["samples"][:24]})
    item = benchmark("humaneval")
    found = evaluate([item], FromFile(ResponseFile(path)), tmp_path / "out", {}, data_dir=DATA)
    one = found["benchmarks"]["humaneval"]
    assert (one["form"], one["samples"], one["unscored"]) == ("continuation", 24, 0)
    assert 0.0 < one["accuracy"] < 1.0
    assert one["pass_at_k"]["mean"][0] == pytest.approx(one["accuracy"], abs=1e-6)
    assert one["pass_at_k"]["mean"][23] == 1.0


def test_a_file_that_answers_nothing_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no response to any of their problems"):
        judged(tmp_path, {"id": "x", "response": "y"})
    assert not (tmp_path / "out").exists()
