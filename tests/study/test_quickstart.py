"""The quickstart end to end, small: two runs, a comparison, a report that needs no network."""

import json
import os
import re
import signal

import pytest
from transformers import TrainerCallback

from dare import InvalidInput
from dare.report.document import write_report
from dare.study import quickstart
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
    metrics = runs[1]["dare"].metrics
    assert figures["dare"]["generated_tokens"] >= budget
    if len(metrics) > 1:  # the budget ended the run, and not a step too late
        assert metrics[-2]["generated_tokens_total"] < budget


def test_the_report_is_one_file_that_loads_nothing(runs, tmp_path):
    path = tmp_path / "report.html"
    shown = write_report([f"{name}={run.folder}" for name, run in runs[1].items()], path)
    page = path.read_text("utf-8")
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']https?:", page)
    assert [run["name"] for run in shown["runs"]] == ["grpo", "dare"]
    parts = {section["id"]: section for section in shown["sections"]}
    drawn = {block.get("id") for block in parts["comparison"]["blocks"]}
    assert {"comparison-curves", "comparison-accuracy", "comparison-tokens"} <= drawn
    assert len(parts["estimator"]["by_run"]) == 2
    for blocks, run in zip(parts["estimator"]["by_run"], runs[1].values(), strict=True):
        (truth,) = [block for block in blocks if block.get("id") == "truth"]
        assert run.estimation is not None
        assert len(truth["traces"][1]["x"]) == run.estimation["prompts"] > 0


def test_the_target_is_the_end_of_the_first_run_and_a_good_start_has_not_reached_it(runs):
    found = compare(runs[1])
    assert found["target"] == found["presets"]["grpo"]["accuracy"]
    for name, figures in found["presets"].items():
        later = [line for line in runs[1][name].eval if line["step"] > 0]
        first = next((line for line in later if line["accuracy"] >= found["target"]), None)
        assert figures["steps_to_target"] == (first and first["step"])
        assert figures["start_accuracy"] == runs[1][name].eval[0]["accuracy"]


def test_estimation_is_measured_against_fresh_rollouts(runs):
    estimation = json.loads((runs[0] / "dare" / "estimation.json").read_text("utf-8"))
    assert 0 <= estimation["mae"] <= 1
    assert len(estimation["truth"]) == estimation["prompts"] > 0


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"thesis\.tex"):
        run_quickstart(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


class Signal(TrainerCallback):
    """Ctrl-C in the first step."""

    def __init__(self, *_, **__) -> None:
        pass

    def on_pre_optimizer_step(self, args, state, control, **_) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_quickstart_does_not_go_on_with_the_next(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(quickstart, "RichProgress", Signal)
    with pytest.raises(KeyboardInterrupt):
        run_quickstart(tmp_path / "runs", options=SMALL)
    assert [one.name for one in (tmp_path / "runs").iterdir()] == ["grpo"]
    assert "stopped at step 1 of 2: the same command\n" in capfd.readouterr().err
