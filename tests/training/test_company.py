"""Several processes: one that is killed, stopped for a while, or stopped for good.

They are started as torchrun does it; its launcher itself starts them in test_nodes.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import dare
import ranks
import tiny
from dare import InvalidInput

REWARD = """
import os, signal, time, pathlib

def reward(completions, trainer_state, **_):
    rank, step = int(os.environ["RANK"]), trainer_state.global_step
    if rank == 1 and step == 0:
        pathlib.Path("pid").write_text(str(os.getpid()))
    what = os.environ["WHAT"]
    if rank == 0 and step == 2 and what in ("kill", "stop", "pause"):
        pid = int(pathlib.Path("pid").read_text())
        os.kill(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        if what == "pause":
            time.sleep(3)
            os.kill(pid, signal.SIGCONT)
    return [float(len(text) % 2) for text in completions]
"""
NEW = [
    *["quickstart", "--reward", "company_reward:reward", "--max-steps", "3", "--save-steps", "1"],
    *["--output-dir", "run", "--rollout-budget", "16", "--per-device-train-batch-size", "8"],
    *["--num-generations", "8", "--max-completion-length", "8", "--eval-strategy", "no"],
    *("--eval-on-start", "false", "--use-cpu", "true", "--data={tasks: {count: 64, seed: 0}}"),
]


def launch(
    folder: Path, what: str, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "company_reward.py").write_text(REWARD)
    given = {"WHAT": what, "PYTHONPATH": f"{Path(dare.__file__).parents[1]}:{folder}"}
    given |= variables
    command = ("-m", "dare", "train", *words)
    return ranks.run(*command, processes=2, folder=folder, variables=given)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("company") / "nothing"
    done = launch(folder, "nothing", *NEW)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def drawn(run: Path) -> list[dict[str, object]]:
    return tiny.lines(run / "selections.jsonl")


def test_a_process_that_is_stopped_for_a_while_changes_nothing(
    undisturbed: Path, tmp_path: Path
) -> None:
    done = launch(tmp_path / "pause", "pause", *NEW)
    assert done.returncode == 0, done.stderr[-3000:]
    assert drawn(tmp_path / "pause" / "run") == drawn(undisturbed)


@pytest.mark.parametrize("what", ["kill", "stop"])
def test_a_process_that_is_lost_ends_the_others_in_a_line(
    what: str, undisturbed: Path, tmp_path: Path
) -> None:
    done = launch(tmp_path / what, what, *NEW, "--ddp-timeout", "8")
    assert done.returncode != 0
    error = [line for line in done.stderr.splitlines() if "error: processes = 2" in line]
    assert len(error) == 1, done.stderr[-3000:]
    assert "checkpoint-2 is intact: continue with dare train --resume run --trust" in error[0]
    ours = done.stderr.partition("torch/distributed/run.py")[0]
    assert "dare/training" not in ours
    if what == "stop":
        return
    again = launch(tmp_path / what, "go on", "--resume", "run", "--trust")
    assert again.returncode == 0, again.stderr[-3000:]
    assert drawn(tmp_path / what / "run") == drawn(undisturbed)


@pytest.mark.parametrize("place", ["_start", "get_train_dataloader"])
def test_a_process_that_is_lost_before_the_first_step_is_told(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers would be blamed for what it calls while it prepares."""
    trainer = tiny.trainer(tmp_path)

    def lost(*_: object) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1")

    monkeypatch.setattr(trainer, place, lost)
    monkeypatch.setattr(trainer._company, "processes", 2)
    with pytest.raises(InvalidInput, match=r"processes = 2: another process .* has ended"):
        trainer.train()
