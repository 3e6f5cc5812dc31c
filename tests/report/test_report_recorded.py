"""What a real trainer records is what the report reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet

import tiny
from dare.curriculum.landscape import BINS, tiers_of
from dare.report.content import content
from dare.report.folder import read_run
from dare.report.found import find_runs


def test_a_run_of_the_trainer_is_reported_in_full(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path, eval_data=tiny.problems(0.5), eval_strategy="steps", eval_steps=2, max_steps=4
    )
    trainer.train()
    records = tiny.lines(tmp_path / "landscape.jsonl")
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    table = pyarrow.parquet.read_table(tmp_path / "difficulty.parquet").to_pydict()
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
    assert notes == [] or all("calibration" in text for text in notes)
    assert {"heatmap", "moves", "ess", "tier-tokens", "cost-seconds", "memory", "samples"} <= {
        block.get("id") for block in parts
    }
