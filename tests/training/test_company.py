"""Several processes: one that is killed, stopped for a while, or stopped for good.

They are started as torchrun does it; its launcher itself starts them in test_nodes.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dare
import ranks
import tiny
from dare import InvalidInput
from dare.runs.checkpoint import MANIFEST, identity, seal, verify
from dare.runs.folder import sole
from dare.training import company

REWARD = """
import os, signal, time, pathlib

def reward(completions, trainer_state, **_):
    rank, step = int(os.environ["RANK"]), trainer_state.global_step
    if rank == 1 and step == 0:
        pathlib.Path("pid").write_text(str(os.getpid()))
    what = os.environ["WHAT"]
    if rank == 0 and step == 2 and what in ("kill", "stop", "pause"):
        pid = int(pathlib.Path("pid").read_text())
        pathlib.Path("lost").write_text(str(time.time()))
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


def since_the_loss(folder: Path) -> float:
    """Seconds since a process was killed or stopped."""
    return time.time() - float((folder / "lost").read_text())


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
    wait = () if what == "kill" else ("--ddp-timeout", "8")  # a killed one closes its connections
    done = launch(tmp_path / what, what, *NEW, *wait)
    assert since_the_loss(tmp_path / what) < 60
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
    monkeypatch.setattr(trainer._company, "gather", lambda **mine: [mine])
    with pytest.raises(InvalidInput, match=r"processes = 2: another process .* has ended"):
        trainer.train()


def test_a_launchers_signal_does_not_cut_off_the_line_about_a_lost_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the other process has ended, which this one may have noticed already."""
    trainer = tiny.trainer(tmp_path)

    def lost(*_: object) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1")

    monkeypatch.setattr(trainer, "get_train_dataloader", lost)
    monkeypatch.setattr(trainer._company, "processes", 2)
    monkeypatch.setattr(trainer._company, "gather", lambda **mine: [mine])
    heard = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with pytest.raises(InvalidInput, match=r"processes = 2: another process"):
            trainer.train()
        os.kill(os.getpid(), signal.SIGTERM)
        assert not heard
        monkeypatch.setattr(company, "LAST_WORDS_S", -1.0)
        with pytest.raises(InvalidInput, match=r"processes = 2: another process"):
            trainer.train()
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


# Goes on with a run whose files the process named cannot read, as often as that is said.
GO_ON = """
import os, sys
import tiny
from pathlib import Path
from dare import InvalidInput

run, ending, broken, times, *wanted = sys.argv[1:]
rank, real, left = os.environ["RANK"], open, int(times)

def refuse(path, *given, **named):
    global left
    if str(path).endswith(ending) and rank == broken and left:
        left -= 1
        raise OSError(5, "Input/output error")
    return real(path, *given, **named)

batch = {"rollout_budget": 32, "per_device_train_batch_size": 16}
made = tiny.trainer(run, max_steps=3, ddp_timeout=120, **batch)
import builtins, io
builtins.open = io.open = refuse
try:
    made.train(resume_from_checkpoint=wanted[0] if wanted else True)
    said = f"from {made.resumed_at}"
except InvalidInput as error:
    said = str(error)
Path(run + rank).write_text(said)
"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of two steps."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    changes = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    tiny.trainer(run, per_device_train_batch_size=16, **changes).train()
    return run


def goes_on(stopped: Path, folder: Path, *words: str) -> list[str]:
    """What each of two processes says that go on from a copy."""
    if not (folder / "run").exists():
        shutil.copytree(stopped, folder / "run")
    (folder / "go_on.py").write_text(GO_ON)
    given = {"PYTHONPATH": os.pathsep.join([str(Path(tiny.__file__).parent), *sys.path])}
    command = (str(folder / "go_on.py"), str(folder / "run"), *words)
    done = ranks.run(*command, processes=2, folder=folder, variables=given)
    assert done.returncode == 0, done.stderr[-3000:]
    return [(folder / f"run{rank}").read_text() for rank in range(2)]


def test_processes_go_on_from_what_the_first_can_read(stopped: Path, tmp_path: Path) -> None:
    damaged = ("checkpoint-2/model.safetensors", "0", "1")
    assert goes_on(stopped, tmp_path, *damaged) == ["from 1"] * 2


@pytest.mark.parametrize("name", [MANIFEST, "optimizer.pt"])
def test_a_checkpoint_that_one_process_cannot_read_is_refused_by_all(
    name: str, stopped: Path, tmp_path: Path
) -> None:
    """Once: it took an older one then, and waited for the others in vain."""
    first, second = goes_on(stopped, tmp_path, f"checkpoint-2/{name}", "1", "1")
    assert first == second
    assert first.startswith(f"resume_from_checkpoint = '{tmp_path}/run/checkpoint-2': process 1")
    assert first.endswith(f"the first can: {name} cannot be read (Input/output error)")


@pytest.mark.parametrize("wanted", [[], ["run/checkpoint-2"]])
def test_where_the_first_process_refuses_all_do(
    wanted: list[str], stopped: Path, tmp_path: Path
) -> None:
    first, second = goes_on(stopped, tmp_path, "model.safetensors", "0", "9", *wanted)
    assert first == second
    assert first.startswith("resume_from_checkpoint = 'run/checkpoint-2': " if wanted else "resume")
    assert ("cannot be read" if wanted else "has no usable checkpoint") in first


def test_a_run_that_is_being_written_is_refused_by_all(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    with sole(tmp_path / "run"):
        first, second = goes_on(stopped, tmp_path, "nothing", "0", "0")
    assert first == second
    assert "is being written by process" in first


def test_another_checkpoint_under_the_same_name_is_told(stopped: Path, tmp_path: Path) -> None:
    """Of machines that do not share what is named."""
    folder, other = stopped / "checkpoint-2", tmp_path / "other"
    own = identity(folder)
    assert verify(folder, seen=own) is None
    shutil.copytree(folder, other)
    (other / MANIFEST).unlink()
    (other / "more").touch()
    other.rename(tmp_path / "staged")
    seal(tmp_path / "staged", other)
    assert verify(other) is None
    assert "another checkpoint" in str(verify(other, seen=own))
