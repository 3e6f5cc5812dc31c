"""Reference solutions and known verdicts of public data, where the data is at hand."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from dare.errors import InvalidInput
from dare_sandbox import open_sandbox
from dare_verify.code import judge_batch

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("DARE_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    if not (DATA / "humaneval").is_dir():
        pytest.skip(f"no data in {DATA}")
    try:
        open_sandbox("auto")
    except InvalidInput as error:
        pytest.skip(str(error))
    spec = importlib.util.spec_from_file_location("code_judge", ROOT / "benchmarks/code_judge.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "every"),
    [
        *(("humaneval", 1), ("humaneval_plus", 20), ("mbpp", 12), ("rollouts", 5)),
        *(("rollouts_plus", 30), ("code_contests", 20), ("apps", 16), ("leetcode", 60)),
    ],
)
def test_verdicts(benchmark: ModuleType, name: str, every: int) -> None:
    cases = list(benchmark.SETS[name](DATA))[::every]
    verdicts = judge_batch([item for _, _, item in cases])
    odd = [
        benchmark.described(row, passed, verdict)
        for (row, passed, _), verdict in zip(cases, verdicts, strict=True)
        if verdict.passed is not passed
    ]
    assert odd == []
