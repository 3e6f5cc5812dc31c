"""Several nodes: two launchers of one rendezvous on this machine, a process each."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_sharded import NEW, alike
from typer.testing import CliRunner

import dare
import ranks
from dare.cli import app

PACKAGE = Path(dare.__file__).parent
SLURM = Path(__file__).parents[2] / "examples" / "cluster" / "slurm.sh"
SRUN = """#!/bin/bash
shift  # an option of srun
for node in 0 1; do SLURM_NODEID=$node "$@" & running+=($!); done
for one in "${running[@]}"; do wait "$one" || exit 1; done
"""
# What two processes tell one another, without a trainer around it.
TALK = """
import os, sys
from pathlib import Path
import numpy as np
import torch.distributed as dist
from dare.errors import InvalidInput
from dare.training import company

root, rank = Path(sys.argv[1]), int(os.environ["RANK"])
dist.init_process_group("gloo", f"file://{root}/meeting", rank=rank, world_size=2)
pair = company.Company(rank, 2)
company.PATIENCE_S = 0.5
told = pair.gather(row=np.arange(3 * rank), words=company.packed({"nan": float("nan"), "of": rank}))
assert [one["row"].tolist() for one in told] == [[], [0, 1, 2]]
assert [company.unpacked(one["words"])["of"] for one in told] == [0, 1]
mine = np.float32([[rank], [rank + 2], [4]][: 3 - rank])
assert pair.exchange(mine).ravel().tolist() == [0, 1, 2, 3, 4]
assert pair.exchange(np.empty((0, 3))).shape == (0, 3)
folders = [root / "shared", root / "own 0"]
for folder in folders if rank == 0 else []:
    folder.mkdir()
    (folder / "written").touch()
pair.agree(root / "shared" / "written", ["a", "b"])
for folder, prompts in ((root / f"own {rank}", ["a"]), (root / "shared", ["a", str(rank)])):
    try:
        pair.agree(folder / "written", prompts)
    except InvalidInput as error:
        print(error)
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        done = CliRunner().invoke(app, ["train", *NEW, "--max-steps", "4"])
    assert done.exit_code == 0, done.output
    return folder / "run"


def test_the_slurm_script_starts_a_launcher_a_node(alone: Path, tmp_path: Path) -> None:
    """The script as it is, with FSDP2, trains like one process; Slurm's own commands are played.

    Its launchers are torchrun's: what accelerate adds to them are the variables of FSDP2.
    """
    tools, given = tmp_path / "tools", environment()
    tools.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/bash\necho 127.0.0.1\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    given["PATH"] = f"{tools}:{Path(sys.executable).parent}:{given['PATH']}"
    given |= {"SLURM_JOB_NODELIST": "two", "SLURM_NNODES": "2", "PER_NODE": "1"}
    given["PORT"] = str(free_port())
    done = subprocess.run(
        ["bash", str(SLURM), *NEW, "--max-steps", "4"],
        cwd=tmp_path,
        env=given,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "destroy_process_group" not in done.stderr  # torch's warning, and now and then SIGABRT
    run = tmp_path / "run"
    assert alike(run, alone)
    config = (run / "config.yaml").read_text()
    assert "processes: 2\n" in config
    assert "distributed: FSDP\n" in config
    kept = {path.name for path in (run / "checkpoint-4").iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= kept


def test_the_kubernetes_manifest_starts_what_the_page_says() -> None:
    service, job = yaml.safe_load_all(SLURM.with_name("kubernetes.yaml").read_text("utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = shlex.split(container["args"][0])
    given = dict(zip(words[2::2], words[3::2], strict=False))
    assert given["--nnodes"] == str(job["spec"]["completions"])
    assert job["spec"]["parallelism"] == job["spec"]["completions"]
    assert given["--nproc-per-node"] == str(container["resources"]["limits"]["nvidia.com/gpu"])
    name = job["metadata"]["name"]
    assert given["--master-addr"] == f"{name}-0.{service['metadata']['name']}"
    assert service["spec"]["selector"] == {"job-name": name}


def test_processes_that_do_not_share_what_they_must_are_told(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(TALK)
    done = ranks.run(str(tmp_path / "talk.py"), str(tmp_path), processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    folders, prompts = (sorted(done.stdout.splitlines())[part] for part in (slice(2), slice(2, 4)))
    for rank, said in enumerate(folders):
        assert said.startswith(f"output_dir = '{tmp_path}/own {rank}': not every process sees it")
    for said in prompts:
        assert said.startswith("train_dataset = '2 prompts': differs from process to process")
