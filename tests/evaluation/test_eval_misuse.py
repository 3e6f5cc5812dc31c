"""What goes wrong around an evaluation: odd files, folders in use, damaged records, rude names."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from eval_worlds import Oracle, lines, respondent, sums

import tiny
from dare.errors import InvalidInput
from dare.evaluation.benchmarks import benchmark, chosen, load_problems
from dare.evaluation.figures import page_of
from dare.evaluation.records import RecordFile
from dare.evaluation.responses import ResponseFile
from dare.evaluation.run import check_scorer, evaluate
from dare.evaluation.sources import Drawing, FromFile, FromModel
from dare.table import Table, print_tables
from dare.templates import load_template
from dare.templates.encode import encode
from dare.training.prompts import PromptStore


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def right(count: int) -> list[dict[str, Any]]:
    return [{"id": f"s{n}", "response": rf"\boxed{{{2 * n + 1}}}"} for n in range(count)]


def score(
    folder: Path, rows: list[dict[str, Any]], label: str | None = None, **options: Any
) -> dict[str, Any]:
    file = ResponseFile(write(folder / "saved.jsonl", rows), label=label)
    figures = evaluate(
        [sums(folder, 4)], FromFile(file), folder / "out", {"responses": "saved"}, **options
    )
    found: dict[str, Any] = figures["benchmarks"]["sums"]
    return found


def test_a_row_without_responses_leaves_its_problem_missing(tmp_path: Path) -> None:
    found = score(tmp_path, [*right(3), {"id": "s3", "responses": []}])
    assert (found["problems"], found["missing"]) == (3, 1)
    with pytest.raises(InvalidInput, match="no response to any"):
        score(tmp_path, [{"id": "s3", "responses": []}], overwrite=True)
    # The evaluation that was there has not been thrown away for that.
    assert len(lines(tmp_path / "out" / "records.jsonl")) == 3


def test_a_limit_that_leaves_nothing_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--limit = 2.*none of the first 2"):
        score(tmp_path, right(4)[3:], limit=2)
    assert not (tmp_path / "out").exists()


def test_odd_token_counts_are_not_known(tmp_path: Path) -> None:
    odd = [10**400, -4, True, 7]
    rows = [{**row, "tokens": size} for row, size in zip(right(4), odd, strict=True)]
    assert score(tmp_path, rows)["tokens"] == 7


def test_null_responses_and_unknown_labels_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="line 4: response = None: is null"):
        score(tmp_path, [*right(3), {"id": "s3", "response": None}])
    with pytest.raises(InvalidInput, match="--label = 'verdict'"):
        score(tmp_path, right(4), label="verdict")


def test_names_survive_a_second_scoring(tmp_path: Path) -> None:
    rows = [
        {"id": f"s{n}", "a": {"text": rf"\boxed{{{2 * n + 1}}}"}, "b": {"text": r"\boxed{0}"}}
        for n in range(4)
    ]
    first = score(tmp_path, rows)
    again = score(tmp_path, lines(tmp_path / "out" / "records.jsonl"), overwrite=True)
    assert again["by_name"] == first["by_name"]
    assert again["by_name"]["a"]["accuracy"] == 1.0
    assert again["pass_at_k"] is None


WHOLE: dict[str, Any] = {
    **{"benchmark": "b", "id": "a", "level": None, "subject": None, "prompt": "p", "gold": "1"},
    **{"responses": ["x"], "scores": [1.0], "tokens": [1], "finish": ["stop"]},
}


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"\xe9",
        b'{"id": "a"}',
        json.dumps(
            {
                **dict.fromkeys(("level", "subject", "prompt", "gold")),
                **{"benchmark": "b", "id": "a", "responses": ["x"], "scores": [1.0, 0.0]},
                **{"tokens": [1], "finish": ["stop"]},
            }
        ).encode(),
        b"[" * 100_000,
        *(
            json.dumps({**WHOLE, name: value}).encode()
            for name, value in [
                *(("benchmark", ["b"]), ("id", ["a"]), ("level", {}), ("prompt", None)),
                *(("scores", [float("nan")]), ("scores", [10**400]), ("tokens", [float("inf")])),
            ]
        ),
    ],
)
def test_lines_that_are_no_records_are_named(tmp_path: Path, line: bytes) -> None:
    file = RecordFile(tmp_path)
    file.path.write_bytes(line + b"\n")
    with pytest.raises(InvalidInput, match=r"line 1.*is no record"):
        file.read()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    handle = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(InvalidInput, match="another `dare eval`"):
        score(tmp_path, right(4))
    os.close(handle)
    assert score(tmp_path, right(4))["accuracy"] == 1.0


def test_folders_that_cannot_go_on_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("a file")
    with pytest.raises(InvalidInput, match=r"--out.*cannot be a folder"):
        score(tmp_path, right(4))
    out.unlink()
    score(tmp_path, right(4))
    for text in ("[]", "{}", "{"):
        (out / "settings.json").write_text(text)
        with pytest.raises(InvalidInput, match="is damaged"):
            score(tmp_path, right(4))
    (out / "settings.json").unlink()
    with pytest.raises(InvalidInput, match=r"records but no settings\.json"):
        score(tmp_path, right(4))
    score(tmp_path, right(4), overwrite=True)
    (out / "eval.json").write_text("[")
    assert score(tmp_path, right(4))["problems"] == 4


def test_another_reward_is_not_mixed_with_the_records_there(tmp_path: Path) -> None:
    score(tmp_path, right(4))
    file = ResponseFile(tmp_path / "saved.jsonl")
    sums(tmp_path, 4)
    path = tmp_path / "sums.yaml"
    path.write_text(path.read_text().replace("reward: math", "reward: boxed"))
    item = benchmark(str(path))
    with pytest.raises(InvalidInput, match="another reward or template"):
        evaluate([item], FromFile(file), tmp_path / "out", {"responses": "saved"})


def test_a_conversation_is_asked_as_in_training(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "mine"}, {"role": "user", "content": "1+1="}]
    write(tmp_path / "talk.jsonl", [{"id": "a", "prompt": turns, "answer": "2"}])
    (tmp_path / "talk.yaml").write_text("parts: [{file: talk}]\n")
    problem = load_problems(benchmark(str(tmp_path / "talk.yaml")))[0]
    tokenizer = tiny.tokenizer()
    store = PromptStore([{"prompt": turns, "answer": "2"}], tokenizer, "math")
    seen: list[Any] = []

    class Watched(Oracle):
        def generate(self, request: Any, sampling: Any) -> Any:
            seen.extend(request.prompts)
            return super().generate(request, sampling)

    respondent(Watched()).answer("talk", [0], [problem], load_template("math"))
    assert [one.tolist() for one in seen] == [store.tokens(0).tolist()]
    plain = encode(tokenizer, load_template("math").messages(problem.text))
    assert seen[0].tolist() != plain.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": 5}, "reward = 5: must be text"),
        ({"template": "mth"}, "did you mean 'math'"),
        ({"rows": "many"}, "rows = 'many'"),
        ({"prompt": 5}, "prompt = 5"),
        ({"continues": "maybe"}, "true or false"),
        ({"unpack": "zip"}, "unpack = 'zip': choose one of livecodebench"),
        ({"repairs": [{"id": "a"}]}, "list of {id, find, replace}"),
        ({"judge": {"time_limit_s": 3}}, "belongs to the reward code"),
        ({"parts": []}, "list of mappings"),
        ({"parts": [{"file": 5}]}, "file = 5"),
        ({"parts": [{"file": "x", "join": 5}]}, "join = 5"),
        ({"parts": [{"file": "x", "keep": "2024"}]}, "keep = '2024': must be a mapping"),
        ({"parts": [{"file": "x", "keep": {"year": "("}}]}, "keep.year.*no regular expression"),
        ({"parts": [{"file": "x", "columns": {"prompt": 5}}]}, "columns.prompt = 5"),
        ({"parts": [{"tasks": {"cnt": 3}}]}, "did you mean 'count'"),
        ({"parts": [{"tasks": {"count": 3}}]}, "tasks = .*: needs 'seed'"),
        ({"parts": [{"hub": 5}]}, "hub = 5: must be text .* or a mapping"),
        ({"parts": [{"hub": {"config": "main"}}]}, "must be a hub id"),
    ],
)
def test_wrong_settings_of_a_benchmark_are_named(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps({"parts": [{"file": "mine"}], **settings}))
    with pytest.raises(InvalidInput, match=message):
        benchmark(str(path))


def test_options_of_the_judge_are_checked_before_anything_runs(tmp_path: Path) -> None:
    check_scorer(benchmark("humaneval+"))
    path = tmp_path / "mine.yaml"
    path.write_text("reward: code\njudge: {time_limits: 3}\nparts: [{file: mine}]\n")
    with pytest.raises(InvalidInput, match="did you mean 'time_limit_s'"):
        check_scorer(benchmark(str(path)))


def test_two_benchmarks_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    sums(tmp_path)
    sums(tmp_path / "more")
    with pytest.raises(InvalidInput, match="two are called sums"):
        chosen(f"{tmp_path / 'sums.yaml'},{tmp_path / 'more' / 'sums.yaml'}")


def test_rude_names_stay_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["[red]x", "[/]", "<script>alert(1)</script>", "\x1b[31m\x00", "a|b\nc"]
    table = Table("title", ["model", f"more than {names[1]}"], [[name, "1"] for name in names])
    page = page_of([table])
    assert "<script>" not in page
    assert not set(page) & {"\x1b", "\x00"}
    assert r"| a\|b c | 1 |" in page
    print_tables([table])
    shown = capsys.readouterr().out
    assert "more than [/]" in shown
    assert "[red]x" in shown


@pytest.mark.parametrize("value", [float("inf"), 1e-320, 1e-38, 9e-4])
def test_a_temperature_that_nothing_can_be_divided_by_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match=f"--temperature = {value}"):
        Drawing(temperature=value)
    assert Drawing(temperature=1e-3).sampling.temperature == 1e-3


def test_subjects_with_lone_surrogates_are_written(tmp_path: Path) -> None:
    item = sums(tmp_path, 2)
    rows = lines(tmp_path / "sums.jsonl")
    write(tmp_path / "sums.jsonl", [{**row, "subject": "\ud800z"} for row in rows])
    source = FromModel(respondent(Oracle()))
    found = evaluate([item], source, tmp_path / "out", {"model": "oracle"})
    assert list(found["benchmarks"]["sums"]["by_subject"]) == ["\ud800z"]
    assert "U+D800" in (tmp_path / "out" / "eval.md").read_text()
