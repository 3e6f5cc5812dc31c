"""The quickstart end to end, small: two runs, a comparison, a report that needs no network."""

import json
import re

import pytest

from dare import InvalidInput
from dare.report.quickstart import write_report
from dare.study.quickstart import compare, run_quickstart

SMALL = [
    "--max-steps=2",
    "--eval-steps=2",
    "--rollout-budget=64",
    "--per-device-train-batch-size=32",
    "--data={tasks: {count: 64, seed: 0}}",
    "--eval-data={tasks: {count: 16, seed: 1, split: test}}",
    "--cold_start.references=4",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart") / "runs"
    return folder, run_quickstart(folder, options=SMALL)


def test_both_methods_start_alike_and_spend_the_same_tokens(runs):
    figures = compare(runs[1])["presets"]
    assert figures["grpo"]["start_accuracy"] == figures["dare"]["start_accuracy"]
    budget = figures["grpo"]["generated_tokens"]
    metrics = runs[1]["dare"]["metrics"]
    assert figures["dare"]["generated_tokens"] >= budget
    if len(metrics) > 1:  # the budget ended the run, and not a step too late
        assert metrics[-2]["generated_tokens_total"] < budget


def test_the_report_is_one_file_that_loads_nothing(runs, tmp_path):
    path = tmp_path / "report.html"
    write_report(runs[1], compare(runs[1]), path)
    page = path.read_text("utf-8")
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']https?:", page)
    assert page.count("<h2>") == 4
    assert "accuracy at the end" in page


def test_estimation_is_measured_against_fresh_rollouts(runs):
    estimation = json.loads((runs[0] / "dare" / "estimation.json").read_text("utf-8"))
    assert 0 <= estimation["mae"] <= 1
    assert len(estimation["truth"]) == estimation["prompts"] > 0


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"thesis\.tex"):
        run_quickstart(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
