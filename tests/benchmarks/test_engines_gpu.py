"""What the benchmark of engines keeps of a run's log."""

import json
from types import SimpleNamespace

import engines_gpu

from dare.policy.correction import GAP_FIGURES


def test_the_gap_of_every_step_is_kept_before_and_after_correction(tmp_path):
    (tmp_path / "run").mkdir()
    lines = [
        {
            **dict.fromkeys(GAP_FIGURES, 0.01 * step),
            **{"step": step, "time": float(step), "reward": 0.5, "length": 9.0},
            **{"tokens": {"generated": 100}, "seconds": {"generate": 0.5}},
        }
        for step in range(8)
    ]
    del lines[7][GAP_FIGURES[2]]  # all was left out: nothing remains
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    (tmp_path / "end.json").write_text('{"resumed": true}')
    found = engines_gpu.measured(tmp_path, SimpleNamespace(steps=8))
    assert found["gap_by_step"].keys() == found["gap"].keys() == set(GAP_FIGURES)
    steps = [0.01 * step for step in range(8)]
    for name in GAP_FIGURES:
        gone = name == GAP_FIGURES[2]
        assert found["gap_by_step"][name] == ([*steps[:7], None] if gone else steps)
