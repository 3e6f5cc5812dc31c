"""The examples run, learn, and stay on one page."""

import importlib
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "minimal.py"
OWN_LOOP = EXAMPLE.with_name("own_loop.py")


def imported(path: Path):
    sys.path.insert(0, str(path.parent))
    try:
        return importlib.import_module(path.stem)
    finally:
        sys.path.pop(0)


def test_the_minimal_example_trains_and_draws_a_plot(tmp_path):
    plot = tmp_path / "plot.html"
    command = [sys.executable, str(EXAMPLE), "--steps", "12", "--out", str(plot)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "dare" in output
    assert "<html>" in plot.read_text("utf-8")


def test_both_methods_of_the_example_learn():
    minimal = imported(EXAMPLE)
    for method in ("grpo", "dare"):
        log = minimal.train(method, 15)
        assert log["accuracy"][-1] > log["accuracy"][0] + 0.02
        assert log["estimation error"][-1] < log["estimation error"][0]


def test_the_example_is_one_page_of_numpy():
    text = EXAMPLE.read_text("utf-8")
    assert len(text.splitlines()) <= 210
    assert "import torch" not in text


def test_a_loop_of_ones_own_learns_more_with_the_curriculum_than_with_uniform_draws():
    own_loop = imported(OWN_LOOP)
    dare, grpo = own_loop.train(15), own_loop.train(15, "grpo")
    assert dare[-1] > dare[0] + 0.02
    assert dare[-1] > grpo[-1]
