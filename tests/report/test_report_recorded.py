"""What a real trainer records is what the report reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import tiny
from dare.curriculum.landscape import BINS, tiers_of
from dare.report.document import content
from dare.runs.found import find_runs
from dare.runs.reader import read_run


@pytest.mark.parametrize("estimator", ["dare", "paper"])
def test_a_run_of_the_trainer_is_reported_in_full(tmp_path: Path, estimator: str) -> None:
    trainer = tiny.trainer(
        tmp_path,
        eval_data=tiny.problems(0.5),
        eval_strategy="steps",
        eval_steps=2,
        max_steps=4,
        curriculum={"estimator.name": estimator, "tiers": True},
    )
    trainer.train()
    records = tiny.lines(tmp_path / "landscape.jsonl")
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    table = pyarrow.parquet.read_table(tmp_path / "difficulty.parquet").to_pydict()
    untried = {"dare": "forecast", "paper": "cold-start"}[estimator]
    expected_names = [estimator if visits else untried for visits in table["visits"]]
    assert table["estimate"] == expected_names
    assert tiers_of(records[-1]).tolist() == table["tier"]
    difficulty = np.array(table["difficulty"])
    expected = np.histogram(difficulty, BINS, (0.0, 1.0))[0]
    assert records[-1]["histogram"] == expected.tolist()
    for line in tiny.lines(tmp_path / "selections.jsonl"):
        assert len(line["tokens"]) == len(line["prompt"])
        metrics = tiny.lines(tmp_path / "metrics.jsonl")[line["step"]]
        assert sum(line["tokens"]) == metrics["generated_tokens"]
    shown = content([read_run(one) for one in find_runs([str(tmp_path)])])
    json.dumps(shown, allow_nan=False)
    parts = [
        block
        for section in shown["sections"]
        for block in section.get("blocks") or section["by_run"][0]
    ]
    notes = [block["text"] for block in parts if block["kind"] == "note"]
    # Only an estimator that reweights has an effective sample size.
    unweighted = "The estimator dare does not reweight, so it has no sample size."
    notes = [text for text in notes if "calibration" not in text]
    assert notes == ([unweighted] if estimator == "dare" else [])
    ids = {block.get("id") for block in parts}
    assert {"heatmap", "moves", "tier-tokens", "cost-seconds", "memory", "samples"} <= ids
    assert ("ess" in ids) == ("ess_accepted" in ids) == (estimator == "paper")
