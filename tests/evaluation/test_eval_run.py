"""One evaluation from end to end with any Generator: files, figures, going on after a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from eval_worlds import Oracle, lines, respondent, sums

from dare.errors import InvalidInput
from dare.evaluation.run import evaluate
from dare.evaluation.sources import FromModel

SETTINGS = {"model": "oracle", "samples": 4, "temperature": 1.0}


def run(folder: Path, oracle: Oracle, count: int = 10, **changes: Any) -> dict[str, Any]:
    choices = {"samples": 4, "temperature": 1.0, **changes.pop("choices", {})}
    source = FromModel(respondent(oracle, **choices), batch=changes.pop("batch", 12))
    settings = {**SETTINGS, **choices}
    item = sums(folder, count)
    return evaluate([item], source, folder / "out", settings, **changes)


def test_greedy_figures_and_records(tmp_path: Path) -> None:
    found = run(tmp_path, Oracle(), choices={"samples": 1, "temperature": 0.0})
    one = found["benchmarks"]["sums"]
    assert (one["accuracy"], one["problems"], one["samples"]) == (0.5, 10, 1)
    assert one["interval"] == "wilson"
    assert one["pass_at_k"] is None
    assert one["by_subject"]["even"]["accuracy"] == 1.0
    assert one["by_subject"]["odd"]["accuracy"] == 0.0
    assert list(one["by_level"]) == ["1", "2", "3"]
    assert one["truncated"] == 0.0
    records = lines(tmp_path / "out" / "records.jsonl")
    first = {
        **{"benchmark": "sums", "id": "s0", "level": "1", "subject": "even", "prompt": "0+1="},
        **{"gold": "1", "responses": [r"so \boxed{1}"], "tokens": [13], "finish": ["stop"]},
        "scores": [1.0],
    }
    assert records[0] == first
    assert json.loads((tmp_path / "out" / "eval.json").read_text()) == found
    page = (tmp_path / "out" / "eval.md").read_text()
    assert "| sums | 10 | 1 | 50.0 [23.7, 76.3] | 50.0 | 14 | 0.0 | 0.0 |" in page


def test_sampled_figures(tmp_path: Path) -> None:
    one = run(tmp_path, Oracle(), count=60)["benchmarks"]["sums"]
    assert one["responses"] == 240
    assert one["interval"] == "wilson over problems"
    curve = one["pass_at_k"]
    assert curve["k"] == [1, 2, 3, 4]
    assert curve["mean"][0] == pytest.approx(one["accuracy"], abs=1e-6)
    assert curve["mean"] == pytest.approx([0.5, 0.75, 0.875, 0.9375], abs=0.08)
    assert curve["mean"] == sorted(curve["mean"])


def test_fewer_samples_are_the_first_of_more(tmp_path: Path) -> None:
    for name, samples in (("few", 2), ("many", 6)):
        (tmp_path / name).mkdir()
        run(tmp_path / name, Oracle(), choices={"samples": samples})
    few, many = (lines(tmp_path / name / "out/records.jsonl") for name in ("few", "many"))
    assert [one["responses"] for one in few] == [one["responses"][:2] for one in many]


def test_a_killed_run_goes_on_and_makes_nothing_twice(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = run(whole, Oracle())
    first = Oracle(fail_after=2)
    with pytest.raises(KeyboardInterrupt):
        run(broken, first)
    file = broken / "out" / "records.jsonl"
    assert len(lines(file)) == 6
    assert not (broken / "out" / "eval.json").exists()
    with open(file, "ab") as more:
        more.write(b'{"benchmark": "sums", "id": "s6", "respon')  # the power went out here
    second = Oracle()
    assert run(broken, second) == expected
    assert set(first.asked).isdisjoint(second.asked)
    assert max(second.asked.values()) == 1
    assert file.read_bytes() == (whole / "out" / "records.jsonl").read_bytes()
    third = Oracle()
    assert run(broken, third) == expected
    assert third.calls == 0


def test_more_problems_and_benchmarks_can_be_added(tmp_path: Path) -> None:
    some = run(tmp_path, Oracle(), limit=3)["benchmarks"]["sums"]
    assert (some["problems"], some["missing"]) == (3, 0)
    oracle = Oracle()
    assert run(tmp_path, oracle)["benchmarks"]["sums"]["problems"] == 10
    assert sum(oracle.asked.values()) == 28
    assert run(tmp_path, Oracle(), limit=3)["benchmarks"]["sums"] == some
    source = FromModel(respondent(Oracle(), samples=4, temperature=1.0))
    both = evaluate([sums(tmp_path, 4, "more")], source, tmp_path / "out", SETTINGS)
    assert {name: one["problems"] for name, one in both["benchmarks"].items()} == {
        "sums": 10,
        "more": 4,
    }
    accuracies = [one["accuracy"] for one in both["benchmarks"].values()]
    assert both["mean_accuracy"] == pytest.approx(sum(accuracies) / 2)


@pytest.mark.parametrize(("name", "value"), [("samples", 5), ("temperature", 0.5)])
def test_other_settings_are_refused_by_name(tmp_path: Path, name: str, value: float) -> None:
    run(tmp_path, Oracle())
    before = (tmp_path / "out" / "records.jsonl").read_bytes()
    with pytest.raises(InvalidInput, match=rf"--{name} = {value}: .* was begun with") as error:
        run(tmp_path, Oracle(), choices={name: value})
    assert error.value.field == f"--{name}"
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == before


def test_other_problems_are_refused(tmp_path: Path) -> None:
    run(tmp_path, Oracle())
    with pytest.raises(InvalidInput, match=r"benchmark sums .* other problems"):
        run(tmp_path, Oracle(), count=11)


def test_a_prompt_without_room_is_a_failure_that_is_named(tmp_path: Path) -> None:
    item = sums(tmp_path, 3)
    rows = (tmp_path / "sums.jsonl").read_text().splitlines()
    rows[1] = rows[1].replace("1+2=", "1+2=" + " " * 800)
    (tmp_path / "sums.jsonl").write_text("\n".join(rows))
    source = FromModel(respondent(Oracle()))
    one = evaluate([item], source, tmp_path / "out", {})["benchmarks"]["sums"]
    records = lines(tmp_path / "out" / "records.jsonl")
    assert [record["finish"] for record in records] == [["stop"], ["prompt"], ["stop"]]
    assert records[1]["scores"] == [0.0]
    assert one["truncated"] == pytest.approx(1 / 3)


def test_responses_that_are_cut_off_are_counted(tmp_path: Path) -> None:
    one = run(tmp_path, Oracle(), choices={"max_tokens": 8})["benchmarks"]["sums"]
    assert (one["truncated"], one["accuracy"], one["tokens"]) == (1.0, 0.0, 8.0)


@pytest.mark.parametrize(
    ("choices", "field"),
    [
        ({"samples": 4, "temperature": 0.0}, "--temperature"),
        ({"samples": 0}, "--samples"),
        ({"temperature": -1.0}, "--temperature"),
        ({"top_p": 0.0}, "--top-p"),
        ({"max_tokens": 0}, "--max-tokens"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_impossible_sampling_is_refused(choices: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        respondent(Oracle(), **choices)
    assert error.value.field == field
