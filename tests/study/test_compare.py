"""Runs read back, compared, and written as tables and figures."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from written import write_run, write_study

from dare import InvalidInput, cli
from dare.evaluation.intervals import paired_difference, student, two_way, wilson
from dare.report.blocks import RUN_COLOURS
from dare.report.pictures import screenshot, write_comparison
from dare.report.sections.comparison import pictures
from dare.runs.methods import load_runs
from dare.study.comparison import _amount, compare_runs, spread, spread_of_gain
from dare.study.tables import Table, grid_table, show, summary_tables

HALF = float(stats.t.ppf(0.975, 1)) * 0.05
"""Of the interval of two seeds that are 0.1 apart."""


def around(mean: float) -> list[float]:
    """That interval, as far as a rate can be."""
    return [mean, max(mean - HALF, 0.0), min(mean + HALF, 1.0)]


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
    # two seeds: a median has no interval
    assert (grpo["steps_to_target"][0], fast["steps_to_target"]) == (20, [10, None, None])
    assert fast["tokens_to_target"][0] == 200
    assert fast["trained_to_target"][0] == 70  # ten steps of seven
    assert fast["seconds_to_target"][0] == 15.0
    for key in ("step_speed_up", "token_speed_up", "second_speed_up"):
        assert fast[key] == [2.0, 2.0, 2.0]
        assert grpo[key] == [1.0, 1.0, 1.0]
    assert fast["over"] == "seeds"
    assert fast["accuracy"] == pytest.approx(around(0.85))
    assert fast["gain"] == pytest.approx([0.2, 0.2, 0.2])
    assert grpo["auc"] == pytest.approx(around(0.45))
    # trapezia of 0.2, 0.4, 0.6, 0.7, 0.8, and the same shifted by 0.1
    assert fast["auc"] == pytest.approx(around(0.6))
    assert fast["seconds"] == [30.0, 30.0, 30.0]
    assert fast["memory_mb"] == [119.0, 119.0, 119.0]
    assert list(fast["by_level"]) == ["1", "10"]
    assert fast["by_level"]["10"]["accuracy"] == pytest.approx(around(0.75))
    assert fast["curve_tokens"][10] == pytest.approx(around(0.65))
    assert [one["curve_tokens"][10] for one in fast["runs"]] == pytest.approx([0.6, 0.7])


def test_an_amount_is_never_below_nothing():
    assert _amount([1.0, 60.0])[1] == 0.0
    assert _amount([59.0, 60.0])[1] == student([59.0, 60.0])[1] > 0.0
    assert _amount([60.0]) == [60.0, None, None]


def test_equal_seconds_are_not_equal_tokens(tmp_path):
    """A method that is twice as good a token and takes three times as long a step."""
    write_run(tmp_path / "grpo", [0.2, 0.3, 0.4, 0.5, 0.6], name="grpo")
    write_run(tmp_path / "slow", [0.2, 0.4, 0.6, 0.7, 0.8], name="slow", seconds=4.5)
    figures = compare_runs(load_runs([tmp_path / "grpo", tmp_path / "slow"])[0])
    slow = figures["methods"]["slow"]
    assert (figures["horizon_tokens"], figures["horizon_seconds"]) == (400, 30.0)
    assert slow["accuracy_at_tokens"][0] == pytest.approx(0.8)
    # 30 seconds are 20 / 3 of its steps: a third of the way from its second to its third evaluation
    assert slow["accuracy_at_seconds"][0] == pytest.approx(0.4 + 0.2 / 3)
    assert slow["gain_at_seconds"][0] == pytest.approx(0.4 + 0.2 / 3 - 0.6)
    assert slow["token_speed_up"][0] == 2.0
    assert slow["second_speed_up"][0] == pytest.approx(30 / 45)
    assert slow["accuracy"][1:] == [None, None]  # one seed, and nothing known of problems
    head = summary_tables(figures)[1].head
    assert "accuracy, equal seconds" in head


def test_a_run_without_seconds_has_none_of_what_needs_them(tmp_path):
    write_run(tmp_path / "a", [0.2, 0.4], name="a")
    write_run(tmp_path / "b", [0.2, 0.5], name="b", seconds=None)
    figures = compare_runs(load_runs([tmp_path / "a", tmp_path / "b"])[0])
    other = figures["methods"]["b"]
    assert figures["horizon_seconds"] is figures["grid_seconds"] is None
    for key in ("seconds", "seconds_to_target", "second_speed_up", "accuracy_at_seconds"):
        assert other[key] == [None, None, None]
    assert other["token_speed_up"][0] == 1.0
    text = "".join(table.markdown() for table in summary_tables(figures))
    assert "equal seconds" not in text
    assert "| b | 0.500 |" in text


def problems_of(rate: float, seed: int) -> list[float]:
    """200 problems of which the same easy ones are solved, and some others by luck."""
    rng = np.random.default_rng(seed)
    return [float(n < 100 * rate or rng.random() < rate / 2) for n in range(200)]


def test_problems_enter_the_interval_where_runs_kept_them(tmp_path):
    held: dict[str, list[list[float]]] = {"grpo": [], "fast": []}
    for name, rate in (("grpo", 0.6), ("fast", 0.8)):
        for seed in range(3):
            last = problems_of(rate, seed)
            held[name].append(last)
            folder = tmp_path / name / f"seed-{seed}"
            write_run(folder, [0.2, float(np.mean(last))], name=name, seed=seed, problems=last)
    figures = compare_runs(load_runs([tmp_path])[0], base="grpo")
    assert figures["problems"] == 200
    fast = figures["methods"]["fast"]
    assert fast["over"] == "seeds and problems"
    own, base = np.array(held["fast"]), np.array(held["grpo"])
    assert fast["accuracy"] == pytest.approx(list(two_way(own)))
    assert fast["gain"] == pytest.approx(list(two_way(own - base)))
    # Seeds on the same 200 problems alone would say too much.
    alone = student(own.mean(axis=1).tolist())
    assert fast["accuracy"][2] - fast["accuracy"][1] > 1.3 * (alone.high - alone.low)
    assert "over seeds and problems" in summary_tables(figures)[0].title


def test_an_interval_of_an_accuracy_holds_no_impossible_ones():
    mean, low, high = spread(np.array([[0.9], [0.98]]))
    assert (mean, high) == (pytest.approx(0.94), 1.0)
    assert 0.0 < low < 0.9
    assert spread(np.array([[0.01], [0.09]])).low == 0.0
    assert spread_of_gain(np.array([[0.9], [0.1]]), np.array([[0.1], [0.9]])).low < -1.0  # a gain


def test_one_seed_each_is_compared_problem_by_problem(tmp_path):
    base, own = problems_of(0.6, 0), problems_of(0.8, 1)
    for name, last in (("grpo", base), ("fast", own)):
        write_run(tmp_path / name, [0.2, float(np.mean(last))], name=name, problems=last)
    figures = compare_runs(load_runs([tmp_path])[0], base="grpo")
    fast = figures["methods"]["fast"]
    assert fast["gain"] == list(paired_difference(np.array(own), np.array(base)))
    assert figures["methods"]["grpo"]["gain"] == [0.0, 0.0, 0.0]  # over itself, to the last digit
    assert [one.title for one in summary_tables(figures)][-1] == "Cost"  # no error was measured
    tokens = pictures(figures, dict.fromkeys(("grpo", "fast"), "run:0"))["levels"][1]
    assert not any(trace["error_y"]["visible"] for trace in tokens["traces"])
    assert fast["accuracy"][1:] == pytest.approx(wilson(float(np.mean(own)), 200))
    assert "of one seed" in summary_tables(figures)[0].title
    # Other problems cannot be paired: nothing is said of them.
    write_run(tmp_path / "more", [0.2, 0.5], name="more", problems=own, problem_set="other")
    mixed = compare_runs(load_runs([tmp_path])[0], base="grpo")
    assert mixed["problems"] is None
    assert mixed["methods"]["fast"]["gain"][1:] == [None, None]


def test_grpo_is_the_base_unless_another_is_named(study):
    runs, _ = load_runs([study])
    figures = compare_runs(runs)
    assert figures["base"] == next(iter(figures["methods"])) == "grpo"
    assert next(iter(compare_runs(runs, base="fast")["methods"])) == "fast"


def test_a_fixed_target_and_another_base(study):
    runs, _ = load_runs([study])
    other = compare_runs(runs, base="fast", target=0.65)["methods"]
    assert other["grpo"]["reached"] == 1  # 0.6 and 0.7 at the end
    assert other["grpo"]["steps_to_target"][0] is None
    assert [one["seconds_to_target"] for one in other["grpo"]["runs"]] == [None, 30.0]
    assert other["grpo"]["step_speed_up"][0] == pytest.approx((0 + 10 / 20) / 2)
    assert other["grpo"]["step_speed_up"][1] == 0.0  # a ratio is never below
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
    assert "| fast | 0.850 [0.215, 1.000] |" in text["compare.md"]
    assert r"S\_$\tau$" in text["compare.tex"]
    assert text["compare.tex"].count(r"\begin{table}") == 6
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
    (drawn,) = pictures(many, {f"method {place}": f"run:{place}" for place in range(25)})["curves"]
    lines = [trace for trace in drawn["traces"] if "name" in trace]
    numbers = [int(trace["colour"].removeprefix("run:")) for trace in lines]
    looks = [
        (number % RUN_COLOURS, trace["line"]["dash"])
        for number, trace in zip(numbers, lines, strict=True)
    ]
    assert len(set(looks)) == len(looks) == 25


def test_the_theme_has_as_many_colours_for_runs_as_the_lines_rely_on():
    theme = (resources.files("dare.report") / "assets" / "theme.js").read_text("utf-8")
    listed = re.findall(r"runs: \[([^\]]*)\]", theme)
    assert [len(colours.split(",")) for colours in listed] == [RUN_COLOURS] * 2


def test_pictures_show_what_the_figures_say(figures):
    colours = {name: f"run:{place}" for place, name in enumerate(figures["methods"])}
    drawn = pictures(figures, colours)
    assert list(drawn) == ["curves", "seconds", "levels", "final"]
    fills = ["fill" in trace for trace in drawn["curves"][0]["traces"]]
    assert fills == [True, True, False, False]  # no band over a line
    ends = {plot["id"]: plot for plot in drawn["final"]}
    for name, trace in zip(figures["methods"], ends["comparison-ends"]["traces"], strict=True):
        mean, low, high = figures["methods"][name]["accuracy"]
        assert (trace["x"], trace["y"]) == ([mean], [name])
        assert trace["error_x"]["array"] == [high - mean]
        assert trace["error_x"]["arrayminus"] == [mean - low]
    bars = {plot["id"]: plot for plot in drawn["levels"]}
    for name, trace in zip(figures["methods"], bars["comparison-tokens"]["traces"], strict=True):
        parts = figures["methods"][name]["by_level"]
        assert trace["x"] == list(parts)
        assert trace["y"] == [part["tokens"][0] for part in parts.values()]


def test_a_browser_draws_the_png(tmp_path, monkeypatch):
    browser = tmp_path / "chromium"
    browser.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "path = [w for w in sys.argv if w.startswith('--screenshot=')][0][13:]\n"
        "open(path, 'wb').write(b'PNG')\n"
    )
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert screenshot("<p>", 100, tmp_path / "out.png") is None
    assert (tmp_path / "out.png").read_bytes() == b"PNG"
    browser.write_text(f"#!{sys.executable}\n")
    assert "wrote no picture" in str(screenshot("<p>", 100, tmp_path / "other.png"))


def test_tables_escape_what_their_format_reads():
    table = Table("50 % of a_b", ["a|b", "x"], [["c&d", "1"]])
    assert "a\\|b" in table.markdown()
    assert r"50 \% of a\_b" in table.latex()
    assert r"c\&d & 1 \\" in table.latex()


def test_a_cell_shows_the_interval_only_where_there_is_one():
    assert show([0.5, 0.4, 0.6], "{:.1f}") == "0.5 [0.4, 0.6]"
    assert show([0.5, 0.5, 0.5], "{:.1f}") == "0.5"
    assert show([0.5, None, None], "{:.1f}") == "0.5"
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


# --- damage ---------------------------------------------------------------------------------------

DAMAGES: list[tuple[str, Any]] = [
    ("eval.jsonl", lambda text: text.replace('"accuracy"', '"acc"', 1)),
    ("eval.jsonl", lambda text: text.replace('"accuracy": 0.3', '"accuracy": "x"', 1)),
    ("eval.jsonl", lambda text: text.replace('"generated_tokens_total"', '"total"', 1)),
    ("eval.jsonl", lambda text: text.replace('"step": 5', '"step": "five"', 1)),
    ("eval.jsonl", lambda text: text.replace('"step": 5', '"stp": 5', 1)),
    ("eval.jsonl", lambda text: "\x00\x01junk\n" + text),
    ("eval.jsonl", lambda text: "[1, 2]\n" + text),
    ("eval.jsonl", lambda text: text.replace('"by_level": {', '"by_level": {"9": 3, ', 1)),
    ("eval.jsonl", lambda text: text.replace('"by_level": {"10": {', '"by_level": 4, "x": {"": {')),
    ("eval.jsonl", lambda text: text.replace('"tokens": 20.0', '"tokens": []')),
    ("eval.jsonl", lambda text: text.replace('"tokens": 10.0', '"by_problem": 7, "tokens": 10.0')),
    ("metrics.jsonl", lambda text: text.replace('"generated_tokens_total"', '"total"', 1)),
    ("metrics.jsonl", lambda text: text.replace('"seconds": {', '"seconds": {"plan": "long", ', 1)),
    ("metrics.jsonl", lambda text: text.replace('"memory_mb": 100.0', '"memory_mb": {}', 1)),
    ("metrics.jsonl", lambda text: text.replace('"trained": 7', '"trained": "7x"', 1)),
    ("metrics.jsonl", lambda text: "null\n" + text),
    ("metrics.jsonl", lambda text: "{}\n" + text),
    ("metrics.jsonl", lambda text: ""),
    ("config.yaml", lambda text: "training: ["),
    ("config.yaml", lambda text: "[]"),
    ("config.yaml", lambda text: "training: 3"),
    ("config.yaml", lambda text: "training: {1: 2, seed: 0}\ncurriculum: {1: 2, a: 3}"),
    ("config.yaml", lambda text: "training: {preset: 4, seed: x}"),
    ("config.yaml", lambda text: "training: {preset: grpo}"),
    ("estimation.json", lambda text: '{"mae": "x"}'),
    ("estimation.json", lambda text: "{"),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_run_is_one_line_that_names_the_place(name, damage, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.2, 0.3, 0.5])
    path = run / name
    before = path.read_text() if path.exists() else ""
    path.write_text(damage(before))
    assert path.read_text() != before
    with pytest.raises(InvalidInput) as caught:
        compare_runs(load_runs([run])[0])
    assert str(run) in str(caught.value)


@pytest.mark.parametrize("name", ["eval.jsonl", "metrics.jsonl"])
def test_a_last_line_that_was_cut_off_and_a_step_written_twice_do_no_harm(name, tmp_path) -> None:
    run = write_run(tmp_path / "run", [0.2, 0.3, 0.5])
    whole = compare_runs(load_runs([run])[0])
    text = (run / name).read_text()
    last = text.splitlines()[-1]
    (run / name).write_text(f"{last}\n{text}{last[: len(last) // 2]}")
    assert compare_runs(load_runs([run])[0]) == whole


def test_what_a_run_could_not_tell_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.2, 0.3, 0.5])
    for key in ("tokens", "memory_mb", "varied_groups", "seconds"):
        for name in ("eval.jsonl", "metrics.jsonl"):
            text = (run / name).read_text()
            (run / name).write_text(text.replace(f'"{key}": ', f'"{key}": null, "x{key}": '))
    figures = compare_runs(load_runs([run])[0])["methods"]["grpo"]
    assert figures["accuracy"][0] == 0.5
    assert figures["memory_mb"][0] is None


def test_a_study_whose_order_is_damaged_is_still_compared(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study")
    (study / "study.json").write_text("{")
    assert {run.method for run in load_runs([study])[0]} == {"grpo", "fast"}
