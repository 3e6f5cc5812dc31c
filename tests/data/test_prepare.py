"""From sources to one clean file: what is kept, what is dropped and why, and nothing by halves."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dare.data import inspect, load_spec, prepare, read_rows, to_row, training_rows
from dare.data.spec import DataSpec, SourceSpec
from dare.errors import InvalidInput

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("DARE_DATA", ROOT.parent / "shared" / "data"))
needs_data = pytest.mark.skipif(not (DATA / "math").is_dir(), reason=f"no data in {DATA}")


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sums(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": n, "question": f"What is {n} + {n + 1}?", "answer": 2 * n + 1, "level": n % 5 + 1}
        for n in range(start, start + count)
    ]


def run(tmp_path: Path, *files: str, out: str = "out.jsonl", **changes: Any) -> dict[str, Any]:
    changes = {"decontaminate": "none", **changes}
    fewer = changes.pop("allow_fewer", False)
    return prepare(load_spec(files, **changes), tmp_path / out, allow_fewer=fewer)


def kept(tmp_path: Path, out: str = "out.jsonl") -> list[dict[str, Any]]:
    return [dict(row) for row in read_rows(tmp_path / out)]


def dropped(tmp_path: Path, out: str = "out.jsonl") -> list[dict[str, Any]]:
    text = (tmp_path / f"{out}.dropped.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("out", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_rows_come_back_as_they_were_written(tmp_path, out):
    code = {"question": "Double it", "input_output": '{"inputs": ["1\\n"], "outputs": ["2\\n"]}'}
    rows = [*sums(5), code, {"question": "q", "answer": "1", "when": float("nan"), "tags": ["a"]}]
    spec = DataSpec("mine", (SourceSpec("in", (rows,)),), decontaminate="none")
    assert prepare(spec, tmp_path / out)["sources"][0]["from"] == ["list"]
    back = [to_row(raw, "x") for raw in read_rows(tmp_path / out)]
    expected = [to_row(raw, "in") for raw in read_rows(rows)]
    expected[-1]["extra"]["when"] = None  # JSON has no such number
    assert back == expected
    assert run(tmp_path, str(tmp_path / out), out=f"again-{out}")["rows"] == len(rows)
    again = [to_row(raw, "x") for raw in read_rows(tmp_path / f"again-{out}")]
    assert [row["id"] for row in again] == [row["id"] for row in back]


def test_repeats_are_dropped_over_all_sources_and_listed(tmp_path):
    one = lines(tmp_path / "one.jsonl", [{"prompt": "Find $x+1$.", "answer": "1"}, *sums(3)])
    two = [
        {"prompt": "Find $x+1$.", "answer": "1"},
        {"prompt": "find \\(x + 1\\)", "answer": "2"},
        {"prompt": "Find $x-1$.", "answer": "1"},
    ]
    report = run(tmp_path, one, lines(tmp_path / "two.jsonl", two))
    first, second = report["sources"]
    assert (first["got"], second["got"]) == (4, 1)
    assert second["dropped"]["same_text"] == 1
    assert second["dropped"]["same_text_after_normalisation"] == 1
    assert second["repeats_with_another_answer"] == 1
    lost = dropped(tmp_path)
    assert [line["why"] for line in lost] == [
        "repeat: same text",
        "repeat: same text after normalisation",
    ]
    assert [line["first_row"] for line in lost] == [1, 1]
    assert lost[1]["where"].endswith("two.jsonl line 2")
    assert run(tmp_path, one, str(tmp_path / "two.jsonl"), repeats="keep")["rows"] == 7


def test_evaluation_problems_are_dropped_with_what_they_matched(tmp_path):
    story = "A train leaves the old station at 9 and drives 120 miles north to a small town by the "
    story += "sea where it waits for 30 minutes before it goes back. When is it home again?"
    exam = lines(
        tmp_path / "exam.jsonl", [{"id": "e/1", "problem": story}, {"problem": "What is 1 + 2?"}]
    )
    rows = [*sums(3), {"question": story.replace("When is it", "Find when it is"), "answer": "3"}]
    source = lines(tmp_path / "in.jsonl", rows)
    report = run(tmp_path, source, decontaminate=exam)
    lost = report["sources"][0]["dropped"]
    assert (lost["evaluation_problems_by_text"], lost["evaluation_problems_by_ngrams"]) == (1, 1)
    found = {line["matches"][0]["how"]: line for line in dropped(tmp_path)}
    assert found["text"]["matches"][0]["problem"] == "What is 1 + 2?"
    assert found["ngrams"]["matches"][0]["id"] == "e/1"
    assert found["ngrams"]["where"].endswith("in.jsonl line 4")
    assert [row["answer"] for row in kept(tmp_path)] == ["1", "5"]
    assert run(tmp_path, source, decontaminate=exam, by="text")["rows"] == 3
    assert run(tmp_path, source, decontaminate=exam, by="none")["rows"] == 4


def test_a_draw_depends_on_the_seed_and_not_on_the_order(tmp_path):
    rows = sums(3000)
    lines(tmp_path / "in.jsonl", rows)
    run(tmp_path, str(tmp_path / "in.jsonl"), take=50, seed=1, out="a.jsonl")
    random.Random(0).shuffle(rows)
    lines(tmp_path / "in.jsonl", rows)
    run(tmp_path, str(tmp_path / "in.jsonl"), take=50, seed=1, out="b.jsonl")
    run(tmp_path, str(tmp_path / "in.jsonl"), take=50, seed=2, out="c.jsonl")
    a, b, c = ({row["id"] for row in kept(tmp_path, f"{name}.jsonl")} for name in "abc")
    assert a == b
    assert len(a) == len(c) == 50
    assert len(a & c) < 10
    report = json.loads((tmp_path / "a.jsonl.report.json").read_text())
    assert report["sources"][0]["dropped"]["not_drawn"] == 2950
    again = run(tmp_path, str(tmp_path / "in.jsonl"), take=50, seed=1, out="b.jsonl")
    first = json.loads((tmp_path / "b.jsonl.report.json").read_text())
    assert again["sha256"] == first["sha256"]


def test_an_output_never_replaces_an_input(tmp_path):
    source = lines(tmp_path / "in.jsonl", [*sums(2), *sums(2)])
    (tmp_path / "link.jsonl").symlink_to(source)
    lines(tmp_path / "exam.jsonl", sums(1))
    aside = lines(tmp_path / "x.jsonl.dropped.jsonl", sums(1))
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    for out, change in (
        ("in.jsonl", {}),
        ("link.jsonl", {}),
        ("exam.jsonl", {"decontaminate": str(tmp_path / "exam.jsonl")}),
    ):
        with pytest.raises(InvalidInput, match=r"--out.*would replace .*which is read"):
            run(tmp_path, source, out=out, **change)
    with pytest.raises(InvalidInput, match="would replace"):
        run(tmp_path, aside, out="x.jsonl")
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("out", "take"), [("a.jsonl", None), ("a.jsonl.gz", 900), ("a.parquet", None)]
)
def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path, out, take):
    source = lines(tmp_path / "in.jsonl", sums(1000))
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from pathlib import Path\n"
        "from dare.data import load_spec, prepare\n"
        "from dare.errors import InvalidInput\n"
        "try:\n"
        f"    spec = load_spec([{source!r}], take={take}, decontaminate='none')\n"
        "    prepare(spec, Path(sys.argv[1]))\n"
        "except InvalidInput as error:\n"
        "    sys.exit(str(error))\n"
    )
    place = tmp_path / "new" / "deep" / out
    done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True)
    assert re.fullmatch(r"--out = .*could not be written: .*[Ff]ile too large\n", done.stderr)
    assert done.returncode == 1
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_what_a_killed_run_left_is_gone_after_the_next(tmp_path):
    source = lines(tmp_path / "in.jsonl", sums(3))
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    (tmp_path / f".out.jsonl.{over.pid}.tmp").write_text("half")
    (tmp_path / f".out.jsonl.spool.jsonl.{over.pid}.tmp").write_text("half")
    (tmp_path / ".out.jsonl.1.tmp").write_text("of a process that runs")
    run(tmp_path, source)
    hidden = [name for name in os.listdir(tmp_path) if name.startswith(".")]
    assert hidden == [".out.jsonl.1.tmp"]


def test_all_three_files_or_none(tmp_path, monkeypatch):
    from dare.data import prepare as module  # the function; its module is asked for by name

    source = lines(tmp_path / "in.jsonl", sums(3))
    place = sys.modules[module.__module__]

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(place, "report_of", fails)
    with pytest.raises(InvalidInput, match=r"--out.*No space left"):
        run(tmp_path, source, out="new/deep/out.jsonl")
    assert os.listdir(tmp_path) == ["in.jsonl"]
    monkeypatch.undo()
    for ending in (".report.json", ".dropped.jsonl"):
        (tmp_path / f"out.jsonl{ending}").mkdir()
        with pytest.raises(InvalidInput, match=f"out.jsonl{ending}': is a folder"):
            run(tmp_path, source)
        (tmp_path / f"out.jsonl{ending}").rmdir()
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_levels_filter_and_missing_levels_are_counted(tmp_path):
    rows = [*sums(10), {"question": "q", "answer": "1"}]
    source = lines(tmp_path / "in.jsonl", rows)
    report = run(tmp_path, source, levels=["3", "4"])
    assert report["rows"] == 4
    assert report["sources"][0]["dropped"]["other_level"] == 7
    assert inspect(source)["missing"]["level"] == 1
    assert run(tmp_path, source, levels=["Level 3", 4.0])["rows"] == 4
    with pytest.raises(InvalidInput, match="no row is left: 11 other_level"):
        run(tmp_path, source, levels=["9"])
    with pytest.raises(InvalidInput, match=r"levels = \['3'\].*no row has a level"):
        run(tmp_path, lines(tmp_path / "none.jsonl", [rows[-1]]), levels=["3"])
    with pytest.raises(InvalidInput, match=r"columns\.level = 'grade'.*no row"):
        run(tmp_path, source, columns={"level": "grade"})


def test_too_few_rows_are_an_error_unless_allowed(tmp_path):
    source = lines(tmp_path / "in.jsonl", sums(5))
    with pytest.raises(InvalidInput, match=r"in 5 of 8.*--allow-fewer"):
        run(tmp_path, source, take=8)
    with pytest.raises(InvalidInput, match="in 5 of 8"):
        run(tmp_path, source, take=8, out="new/out.parquet")
    assert os.listdir(tmp_path) == ["in.jsonl"]
    report = run(tmp_path, source, take=8, allow_fewer=True)
    assert (report["sources"][0]["wanted"], report["sources"][0]["got"]) == (8, 5)


BAD = {
    "wrong columns": ([{"text": "q", "answer": "1"}], "line 1: prompt"),
    "no answer": ([*sums(2), {"question": "q"}], "line 3: answer or tests"),
    "mixed types": ([*sums(2), {"question": ["q"], "answer": "1"}], r"line 3: question\[0\]"),
    "prompt of two kinds": (
        [*sums(2), {"prompt": [{"role": "user", "content": "q"}], "answer": "1"}],
        "only .jsonl takes both",
    ),
    "duplicate ids": ([*sums(2), {**sums(9)[8], "id": 1}], "line 3: id = 1.*same id"),
    "empty": ([], "has no rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, name):
    rows, message = BAD[name]
    source = lines(tmp_path / "in.jsonl", rows)
    (tmp_path / "out.parquet").write_text("old")
    with pytest.raises(InvalidInput, match=message):
        run(tmp_path, source, out="out.parquet")
    with pytest.raises(InvalidInput, match=message):
        run(tmp_path, source, out="out.parquet", take=len(rows) or 1)
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "out.parquet"]
    assert (tmp_path / "out.parquet").read_text() == "old"


def test_bad_rows_can_be_dropped_and_are_counted(tmp_path):
    rows = [*sums(2), {"question": "q"}, {"question": 5, "answer": "1"}]
    report = run(tmp_path, lines(tmp_path / "in.jsonl", rows), bad_rows="drop")
    assert report["rows"] == 2
    assert report["sources"][0]["dropped"]["bad_rows"] == 2
    assert "line 3: answer or tests" in report["sources"][0]["bad_row_examples"][0]
    assert [line["why"] for line in dropped(tmp_path)] == ["bad row", "bad row"]
    with pytest.raises(InvalidInput, match="no row is left: 2 bad_rows"):
        run(tmp_path, lines(tmp_path / "none.jsonl", rows[2:]), bad_rows="drop")
    twice = lines(tmp_path / "twice.jsonl", [*sums(2), {**sums(9)[8], "id": 1}])
    report = run(tmp_path, twice, bad_rows="drop")
    assert (report["rows"], report["sources"][0]["dropped"]["bad_rows"]) == (2, 1)
    assert "line 3: id = 1" in dropped(tmp_path)[0]["error"]


def test_a_recipe_of_your_own(tmp_path):
    lines(tmp_path / "sums.jsonl", sums(20))
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        f"seed: 3\ndecontaminate: none\nsources:\n"
        f"  - {{name: a, path: {tmp_path}/sums.jsonl, levels: [1, 2], take: 3}}\n"
        f"  - {{name: b, path: {tmp_path}/sums.jsonl, repeats: keep, extra: []}}\n"
    )
    report = run(tmp_path, str(recipe), decontaminate=None)
    assert [source["got"] for source in report["sources"]] == [3, 20]
    assert {row["source"] for row in kept(tmp_path)} == {"a", "b"}
    assert "extra" not in kept(tmp_path)[-1]
    lines(tmp_path / "sums.jsonl", [{**row, "source": "inner"} for row in sums(2)])
    for keep, names in (("true", {"inner"}), ("false", {"a"})):
        place = f"{{name: a, path: {tmp_path}/sums.jsonl, keep_source: {keep}}}"
        recipe.write_text(f"decontaminate: none\nsources: [{place}]\n")
        run(tmp_path, str(recipe), decontaminate=None)
        assert {row["source"] for row in kept(tmp_path)} == names
    for text, message in (
        ("sources: [{name: a, path: x.jsonl, tak: 3}]", "did you mean 'take'"),
        ("sources: [{name: a, path: x.jsonl, columns: {promt: q}}]", "did you mean 'prompt'"),
        ("sources: [{name: a, path: x.jsonl, by: magic}]", "choose one of ngrams, none, text"),
        ("sources: [{name: a, path: x.jsonl, take: 0}]", "positive"),
        ("sources: [{name: a}]", "needs a path"),
        ("sources: [{name: a, path: x.jsonl}, {name: a, path: y.jsonl}]", "two sources"),
        ("sources: []", "sources"),
        ("sources: [{name: 5, path: x.jsonl}]", "a name, a word"),
        ("sources: [{name: a, path: x.jsonl, columns: [q]}]", "columns = "),
        ("sources: [{name: a, path: x.jsonl, take: true}]", "take = True"),
        ("sources: [{name: a, path: x.jsonl, levels: [[3]]}]", "levels = "),
        ("sources: [{name: a, path: x.jsonl, answers: [x]}]", "answers = 'x'"),
        ("sources: [{name: a, path: x.jsonl, keep_source: maybe}]", "true or false"),
        ("share: half\nsources: [{name: a, path: x.jsonl}]", "share = 'half'"),
        ("ngram: 8.5\nsources: [{name: a, path: x.jsonl}]", "ngram = 8.5"),
        ("seed: true\nsources: [{name: a, path: x.jsonl}]", "seed = True"),
        ("decontaminate: 5\nsources: [{name: a, path: x.jsonl}]", "decontaminate = 5"),
        ("decontaminate: [5]\nsources: [{name: a, path: x.jsonl}]", "decontaminate = "),
        ("data_dir: x\nsources: [{name: a, path: x.jsonl}]", "recipe mine: data_dir"),
        ("[1, 2]", "mapping"),
        ("a: [", "not YAML"),
        ("seeds: 1\nsources: [{name: a, path: x}]", "did you mean 'seed'"),
    ):
        recipe.write_text(text)
        with pytest.raises(InvalidInput, match=message):
            load_spec([str(recipe)])
    with pytest.raises(InvalidInput, match="did you mean 'paper-math'"):
        load_spec(["paper-maths"])
    same = load_spec(["a/train.jsonl", "b/train.jsonl"])
    assert [source.name for source in same.sources] == ["a/train", "b/train"]


def test_outputs_that_cannot_be_written_are_refused_first(tmp_path):
    source = lines(tmp_path / "in.jsonl", sums(2))
    with pytest.raises(InvalidInput, match=r"must end in \.parquet"):
        run(tmp_path, source, out="out.csv")
    (tmp_path / "dir.parquet").mkdir()
    with pytest.raises(InvalidInput, match="is a folder"):
        run(tmp_path, source, out="dir.parquet")
    with pytest.raises(InvalidInput, match="cannot be written to"):
        run(tmp_path, source, out="in.jsonl/out.parquet")
    run(tmp_path, source, out="new/out.parquet")
    assert (tmp_path / "new" / "out.parquet").is_file()


def test_training_rows_have_fields_and_own_columns(tmp_path):
    rows = [
        {"question": "a", "answer": "#### 5", "chance": 0.5},
        {"question": "b", "answer": "6", "x": 1},
    ]
    run(tmp_path, lines(tmp_path / "in.jsonl", rows), out="a.parquet")
    for source in (str(tmp_path / "in.jsonl"), str(tmp_path / "a.parquet")):
        first, second = training_rows(source)
        assert (first["prompt"], first["answer"], first["chance"]) == ("a", "5", 0.5)
        assert (second["prompt"], second["x"], second["chance"]) == ("b", 1, None)
        assert "tests" not in first
    assert training_rows(str(tmp_path / "a.parquet"))[0]["source"] == "in"
    taken = [{"prompt": "a", "answer": "1", "completions": "x", "extra": {"prompts": "y"}}]
    assert sorted(training_rows(taken)[0]) == ["answer", "prompt", "source"]
    renamed = {"path": str(tmp_path / "in.jsonl"), "columns": {"answer": "chance"}}
    with pytest.raises(InvalidInput, match="line 2: answer = 'chance'"):
        training_rows(renamed)


@needs_data
def test_the_papers_union_from_local_copies(tmp_path):
    out = tmp_path / "union.parquet"
    report = prepare(load_spec(["paper-math"], DATA), out, allow_fewer=True)
    got = {source["name"]: source["got"] for source in report["sources"]}
    assert got == {"math": 8888, "deepscaler": 10240, "orz": 1344, "deepmath": 39}
    assert report["wanted"] == 35512
    found = {source["name"]: source["evaluation_problems_found"] for source in report["sources"]}
    assert found["deepscaler"]["aimo-aime"]["text"] == 49
    assert found["deepscaler"]["math500"]["text"] == 8
    assert report["sources"][1]["dropped"]["evaluation_problems_by_ngrams"] == 27
    assert report["decontamination"]["not_checked"] == ["aime25", "olympiadbench"]
    with gzip.open(DATA / "math_level3to5" / "train.jsonl.gz", "rt") as known:
        expected = sorted(json.loads(line)["problem"] for line in known)
    rows = [dict(row) for row in read_rows(out)]
    assert sorted(row["prompt"] for row in rows if row["source"] == "math") == expected
    assert all(row["answer"] for row in rows)
    assert report["rows"] == len(rows) == sum(got.values())


@needs_data
def test_the_papers_code_says_what_is_missing(tmp_path):
    out = tmp_path / "code.jsonl.gz"
    with pytest.raises(InvalidInput, match=r"taco 0 of 5,120; apps 128 of 5,120"):
        prepare(load_spec(["paper-code"], DATA, decontaminate="none"), out)
    assert list(tmp_path.iterdir()) == []
    report = prepare(load_spec(["paper-code"], DATA), out, allow_fewer=True)
    taco, apps = report["sources"]
    assert (taco["wanted"], taco["got"], taco["dropped"]["bad_rows"]) == (5120, 0, 1000)
    assert (apps["wanted"], apps["got"]) == (5120, 128)
    rows = training_rows(str(out))
    assert len(rows) == 128
    assert all(row["tests"] for row in rows)
    assert "answer" not in rows[0]
    called = [row for row in rows if "fn" in row["tests"][0]]
    assert len(called) == 46
    for row in called:  # the set keeps the name of the function in another column
        assert row["tests"][0]["fn"].rpartition(".")[2] in row["prompt"]
