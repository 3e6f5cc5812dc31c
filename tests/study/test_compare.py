"""Runs read back, compared, and written as tables and figures."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest
from written import write_run, write_study

from dare import InvalidInput, cli
from dare.report.compare import curves
from dare.report.png import screenshot
from dare.study.compare import compare_runs
from dare.study.output import write_comparison
from dare.study.runs import load_runs
from dare.study.tables import Table, grid_table, show


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    return write_study(tmp_path_factory.mktemp("runs") / "study")


@pytest.fixture(scope="module")
def figures(study):
    return compare_runs(load_runs([study])[0])


def test_a_study_is_read_in_its_own_order_without_what_is_unfinished(study):
    runs, unfinished = load_runs([study])
    assert [(run.method, run.seed) for run in runs] == [
        ("grpo", 0),
        ("grpo", 1),
        ("fast", 0),
        ("fast", 1),
    ]
    assert [path.parent.name for path in unfinished] == ["slow"]


def test_figures_are_those_worked_out_by_hand(figures):
    grpo, fast = figures["methods"]["grpo"], figures["methods"]["fast"]
    assert figures["horizon_tokens"] == 400
    assert [one["target"] for one in fast["runs"]] == pytest.approx([0.6, 0.7])
    assert (grpo["steps_to_target"], fast["steps_to_target"]) == ([20, 20, 20], [10, 10, 10])
    assert fast["tokens_to_target"] == [200, 200, 200]
    assert fast["trained_to_target"] == [70, 70, 70]  # ten steps of seven
    assert fast["seconds_to_target"] == [15.0, 15.0, 15.0]
    assert fast["step_speed_up"] == fast["token_speed_up"] == [2.0, 2.0, 2.0]
    assert grpo["step_speed_up"] == [1.0, 1.0, 1.0]
    assert fast["accuracy"] == pytest.approx([0.85, 0.8, 0.9])
    assert fast["gain"] == pytest.approx([0.2, 0.2, 0.2])
    assert grpo["auc"] == pytest.approx([0.45, 0.4, 0.5])
    # trapezia of 0.2, 0.4, 0.6, 0.7, 0.8, and the same shifted by 0.1
    assert fast["auc"] == pytest.approx([0.6, 0.55, 0.65])
    assert fast["seconds"] == [30.0, 30.0, 30.0]
    assert fast["memory_mb"] == [119.0, 119.0, 119.0]
    assert list(fast["by_level"]) == ["1", "10"]
    assert fast["by_level"]["10"]["accuracy"] == pytest.approx([0.75, 0.7, 0.8])
    assert fast["curve"][10] == pytest.approx([0.65, 0.6, 0.7])


def test_a_fixed_target_and_another_base(study):
    runs, _ = load_runs([study])
    other = compare_runs(runs, base="fast", target=0.65)["methods"]
    assert other["grpo"]["reached"] == 1  # 0.6 and 0.7 at the end
    assert other["grpo"]["steps_to_target"][0] is None
    assert [one["seconds_to_target"] for one in other["grpo"]["runs"]] == [None, 30.0]
    assert other["grpo"]["step_speed_up"][0] == pytest.approx((0 + 10 / 20) / 2)
    with pytest.raises(InvalidInput, match="did you mean 'fast'"):
        compare_runs(runs, base="fats")


def test_a_seed_without_its_base_run_is_left_out_of_what_is_paired(study, tmp_path):
    alone = write_run(tmp_path / "alone", [0.2, 0.9, 0.9, 0.9, 0.9], name="fast", seed=2)
    runs, _ = load_runs([study, alone])
    fast = compare_runs(runs)["methods"]["fast"]
    assert fast["seeds"] == [0, 1, 2]
    assert fast["step_speed_up"] == [2.0, 2.0, 2.0]
    assert fast["accuracy"][0] == pytest.approx((0.8 + 0.9 + 0.9) / 3)


def test_plain_runs_are_named_after_preset_folder_or_as_asked(tmp_path):
    a = write_run(tmp_path / "a", [0.1, 0.2], preset="dare", settings={"kappa": 8})
    b = write_run(tmp_path / "b", [0.1, 0.3], preset="dare", settings={"kappa": 16})
    c = write_run(tmp_path / "c", [0.1, 0.3], preset="grpo")

    def names(*words: str | Path) -> list[str]:
        return [run.method for run in load_runs(words)[0]]

    assert names(a, c) == ["dare", "grpo"]
    assert names(a, b, c) == ["a", "b", "grpo"]
    assert names(f"mine={a}", b) == ["mine", "dare"]
    assert names(tmp_path) == ["a", "b", "grpo"]


def test_what_cannot_be_compared_is_refused(tmp_path, study):
    same = write_run(tmp_path / "same", [0.1, 0.2])
    twin = write_run(tmp_path / "twin", [0.1, 0.2])
    for words, match in (
        ([tmp_path / "nothing"], "there is no such folder"),
        ([study / "slow"], "no finished run"),
        ([same, twin], "NAME=FOLDER"),
        ([same, same], "named twice"),
    ):
        with pytest.raises(InvalidInput, match=match):
            load_runs(words)


def test_a_comparison_is_written_in_every_format(figures, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no browser
    written, reason = write_comparison(figures, tmp_path / "out")
    assert reason is not None
    assert reason.startswith("no PNG")
    names = {path.name for path in written}
    assert names == {
        "compare.md",
        "compare.tex",
        "summary.csv",
        "runs.csv",
        "compare.json",
        "compare.html",
    }
    text = {name: (tmp_path / "out" / name).read_text("utf-8") for name in names}
    assert "| fast | 0.850 [0.800, 0.900] |" in text["compare.md"]
    assert r"S\_$\tau$" in text["compare.tex"]
    assert text["compare.tex"].count(r"\begin{table}") == 5
    rows = list(csv.DictReader(io.StringIO(text["runs.csv"])))
    assert [row["level_10_accuracy"] for row in rows][:1] == ["0.5"]
    lines = list(csv.DictReader(io.StringIO(text["summary.csv"])))
    found = [
        line for line in lines if (line["method"], line["figure"]) == ("fast", "token_speed_up")
    ]
    assert found[0]["mean"] == "2.0"
    assert json.loads(text["compare.json"]) == figures
    assert not re.search(
        r"<(?:script|link|img)[^>]+(?:src|href)=[\"']https?:", text["compare.html"]
    )


def test_no_two_lines_look_alike(figures):
    one = next(iter(figures["methods"].values()))
    many = {**figures, "methods": {f"method {place}": one for place in range(25)}}
    looks = [(line.line.color, line.line.dash) for line in curves(many).data if line.name]
    assert len(set(looks)) == len(looks) == 25


def test_a_browser_draws_the_png(figures, tmp_path, monkeypatch):
    from dare.report.compare import curves

    browser = tmp_path / "chromium"
    browser.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "path = [w for w in sys.argv if w.startswith('--screenshot=')][0][13:]\n"
        "open(path, 'wb').write(b'PNG')\n"
    )
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert screenshot(curves(figures), tmp_path / "out.png") is None
    assert (tmp_path / "out.png").read_bytes() == b"PNG"
    browser.write_text(f"#!{sys.executable}\n")
    assert "wrote no picture" in str(screenshot(curves(figures), tmp_path / "other.png"))


def test_tables_escape_what_their_format_reads():
    table = Table("50 % of a_b", ["a|b", "x"], [["c&d", "1"]])
    assert "a\\|b" in table.markdown()
    assert r"50 \% of a\_b" in table.latex()
    assert r"c\&d & 1 \\" in table.latex()


def test_a_cell_shows_the_interval_only_where_there_is_one():
    assert show([0.5, 0.4, 0.6], "{:.1f}") == "0.5 [0.4, 0.6]"
    assert show([0.5, 0.5, 0.5], "{:.1f}") == "0.5"
    assert show([20, 10, None], "{:.0f}") == "20 [10, -]"
    assert show([None, None, None], "{:.1f}") == "-"


def test_a_grid_has_a_row_a_value_of_the_first_field():
    one = [0.1, 0.1, 0.1]
    figures = {
        "methods": {
            f"easy.length_penalty={a},hard.length_bonus={b}": {"accuracy": one}
            for a in ("0", "1e-4")
            for b in ("0", "2e-4")
        }
    }
    table = grid_table(figures, ["easy.length_penalty", "hard.length_bonus"])
    assert table.head[1:] == ["0", "2e-4"]
    assert [row[0] for row in table.rows] == ["0", "1e-4"]


def test_the_command_prints_a_table_or_json(study, monkeypatch, capsys):
    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dare", "compare", *args])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    code, out, err = call(str(study), "--json")
    assert code == 0
    assert json.loads(out)["methods"]["fast"]["token_speed_up"][0] == 2.0
    assert "left out 1 unfinished" in err
    code, out, _ = call(str(study), "--target", "0.4")
    assert code == 0
    assert "Accuracy by level" in out
    assert call(str(study), "--base", "fats")[0] == 2
