"""The example runs, learns, and stays on one page."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "minimal.py"


def test_the_minimal_example_trains_and_draws_a_plot(tmp_path):
    plot = tmp_path / "plot.html"
    command = [sys.executable, str(EXAMPLE), "--steps", "12", "--out", str(plot)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "dare" in output
    assert "<html>" in plot.read_text("utf-8")


def test_both_methods_of_the_example_learn():
    sys.path.insert(0, str(EXAMPLE.parent))
    try:
        import minimal
    finally:
        sys.path.pop(0)
    for method in ("grpo", "dare"):
        log = minimal.train(method, 15)
        assert log["accuracy"][-1] > log["accuracy"][0] + 0.02
        assert log["estimation error"][-1] < log["estimation error"][0]


def test_the_example_is_one_page_of_numpy():
    text = EXAMPLE.read_text("utf-8")
    assert len(text.splitlines()) <= 210
    assert "import torch" not in text
