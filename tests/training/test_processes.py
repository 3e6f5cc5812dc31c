"""Two processes: the gradients, selections and records of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gradient_cases import as_saved, run

import tiny
from dare.training.checkpoint import verify
from dare.training.run_folder import FILES

CASES = ("tiers", "all")
TIMING = ("seconds", "time", "memory_mb")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The run folders of one process and of two, of the same model."""
    root = tmp_path_factory.mktemp("processes")
    tiny.policy().save_pretrained(root / "model")
    script = Path(__file__).with_name("gradient_cases.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += ["--master_port", "0", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    command += [str(script), str(root / "model"), str(root / "two"), *CASES]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    (root / "two").mkdir()
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for case in CASES:
        _, steps = run(case, root / "one" / case)
        torch.save(as_saved(steps), root / "one" / f"{case}.pt")
    return root / "one", root / "two"


@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_gradient_of_one_and_of_the_reference(case, folders) -> None:
    one, two = (torch.load(folder / f"{case}.pt") for folder in folders)
    assert len(one) == len(two) == 2
    for alone, together in zip(one, two, strict=True):
        assert tiny.close(alone["selection"], together["selection"], 1e-6)
        assert together["distance"] < 1e-5
        assert together["loss"] == pytest.approx(alone["loss"], abs=1e-5)
        for name, value in alone["gradient"].items():
            assert float((value - together["gradient"][name]).abs().max()) < 1e-5


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FILES)
def test_the_run_folder_is_written_once(case, name, folders) -> None:
    one, two = (tiny.lines(folder / case / name) for folder in folders)
    assert len(one) == len(two) > 0
    for alone, together in zip(one, two, strict=True):
        assert tiny.close(tiny.without(alone, TIMING), tiny.without(together, TIMING), 1e-4)


@pytest.mark.parametrize("case", CASES)
def test_the_checkpoint_of_two_processes_is_whole(case, folders) -> None:
    names = [
        {str(path.relative_to(folder / case)) for path in (folder / case).rglob("*")}
        for folder in folders
    ]
    assert verify(folders[1] / case / "checkpoint-2") is None
    states = {f"checkpoint-2/rng_state_{rank}.pth" for rank in range(2)}
    assert names[1] - names[0] == states
    assert names[0] - names[1] == {"checkpoint-2/rng_state.pth"}
