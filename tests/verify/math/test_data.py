"""Public golds and rollouts, where they are at hand; the whole is `benchmarks/math_rewards.py`."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from dare.rewards.builtin import gsm8k_answer
from dare_verify.math import check_golds, default, verify_batch

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("DARE_DATA", ROOT.parent / "shared" / "data"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the data sets are not here")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench", ROOT / "benchmarks" / "math_rewards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "failing"),
    [
        ("gsm8k/test", []),
        ("math500/test", []),
        ("minerva_math/test", []),
        ("math/test", []),
        ("math/train", [5341, 5343]),  # these two are empty
    ],
)
def test_golds(bench: ModuleType, name: str, failing: list[int]) -> None:
    golds = [row["answer"] for row in bench.read(DATA / name)]
    assert [row for row, _ in check_golds(golds)] == failing
    found = verify_batch([rf"\boxed{{{gold}}}" for gold in golds], golds)
    assert [row for row, verdict in enumerate(found) if verdict is not True] == failing


def test_labels_of_math100(bench: ModuleType) -> None:
    texts, golds, labels = bench.math100(DATA)
    found = verify_batch(texts, golds)
    apart = {(golds[row], labels[row]) for row in range(800) if found[row] is not labels[row]}
    # Both are errors of the labels: 4:30 p.m. is 4:30 p.m., and 10{,}000 is 10000.
    assert apart <= {(r"\text{4:30 p.m.}", False), ("10{,}000", False)}


def test_labels_of_gsm8k(bench: ModuleType) -> None:
    texts, golds, labels = bench.gsm8k(DATA)
    found = default.verify_batch(texts, golds, extract=gsm8k_answer)
    assert sum(a is b for a, b in zip(found, labels, strict=True)) >= 0.995 * len(labels)
