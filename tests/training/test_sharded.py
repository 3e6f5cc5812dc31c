"""Weights in parts on two processes: the selections and gradients of one process, and its
checkpoints. FSDP2 always, ZeRO-2 and ZeRO-3 where DeepSpeed is installed (make test-deepspeed)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import test_company
import torch
from gradient_cases import TOLERANCE, as_saved, run, updates
from safetensors.torch import load_file

import dare
import ranks
import tiny
from dare.runs.checkpoint import verify

# Help, replay and KL; several updates; a probing, a generating and an asking estimator.
CASES = ("all", "mini-batches", "preset dare", "preset dapo", "preset edco", "preset llm-judge")
ZERO = {"ACCELERATE_USE_CPU": "false", "ACCELERATE_USE_DEEPSPEED": "true"}
LAUNCHED = {
    "fsdp2": {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    },
    "zero2": {**ZERO, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"},
    "zero3": {**ZERO, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
}
deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs DeepSpeed")
KINDS = ["fsdp2", *(pytest.param(kind, marks=deepspeed) for kind in ("zero2", "zero3"))]


# A second trainer in one process is not DeepSpeed's affair: each of its cases has a launch.
EACH = [["all"], ["mini-batches"]]
LAUNCHES = {"fsdp2": [CASES], "zero2": EACH, "zero3": EACH}
PAIRS = [
    pytest.param(kind, case, marks=() if kind == "fsdp2" else deepspeed)
    for kind, launches in LAUNCHES.items()
    for cases in launches
    for case in cases
]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """All cases of a kind on two processes; the folder with what came of them."""

    @cache
    def made(kind: str) -> Path:
        root = tmp_path_factory.mktemp("sharded")
        tiny.policy().save_pretrained(root / "model")
        script = str(Path(__file__).with_name("gradient_cases.py"))
        for cases in LAUNCHES[kind]:
            words = (script, str(root / "model"), str(root), *cases)
            done = ranks.run(*words, processes=2, variables=LAUNCHED[kind])
            assert done.returncode == 0, done.stderr[-4000:]
        return root

    return made


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What one process makes of a case, with the sizes of its weights."""

    @cache
    def made(case: str) -> dict[str, Any]:
        trainer, steps = run(case, tmp_path_factory.mktemp("single"))
        sizes = {name: value.shape for name, value in trainer.model.named_parameters()}
        return {**as_saved(trainer, steps), "sizes": sizes}

    return made


def saved(folder: Path, case: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{case}.pt")
    return found


def apart(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((value - second[name]).abs().max()) for name, value in first.items())


@pytest.mark.parametrize(("kind", "case"), PAIRS)
def test_two_halves_of_a_model_select_and_update_like_one(
    kind: str, case: str, sharded: Callable[[str], Path], single: Callable[[str], dict[str, Any]]
) -> None:
    two, one = saved(sharded(kind), case), single(case)
    rows = {name: (size[0] + 1) // 2 for name, size in one["sizes"].items()}
    entries = {name: (size.numel() + 1) // 2 for name, size in one["sizes"].items()}
    every = {name: size[0] for name, size in one["sizes"].items()}
    assert two["parts"] == {"fsdp2": rows, "zero2": every, "zero3": entries}[kind]
    assert len(one["gradients"]) == len(two["gradients"]) == 2 * updates(case)
    assert tiny.close(one["selections"], two["selections"], 1e-6)
    assert tiny.close(one["difficulty"], two["difficulty"], 1e-5)
    for alone, together in zip(one["gradients"], two["gradients"], strict=True):
        assert apart(alone, together) < TOLERANCE
    assert apart(one["weights"], two["weights"]) < TOLERANCE
    if not case.startswith("preset"):
        assert max(two["distances"]) < TOLERANCE


NEW = [
    *["quickstart", "--rollout-budget", "16", "--per-device-train-batch-size", "8"],
    *["--num-generations", "4", "--max-completion-length", "24", "--eval-strategy", "no"],
    *["--eval-on-start", "false", "--use-cpu", "true", "--output-dir", "run"],
    *["--save-steps", "2", "--learning-rate", "1e-3", "--adam-epsilon", "1e-3"],
    "--data={tasks: {count: 64, seed: 0}}",
]
TWO = ("--processes", "2", "--accelerate")
TOLD = {"ddp": "MULTI_CPU", "fsdp2": "FSDP"}


def train(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`dare train` in this folder."""
    folder.mkdir(exist_ok=True)
    source = str(Path(dare.__file__).parents[1])
    given = {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", **variables}
    if "--accelerate" not in words and "--processes" not in words:
        return ranks.run("-m", "dare", "train", *words, folder=folder, variables=given)
    return subprocess.run(
        [sys.executable, "-m", "dare", "train", *words],
        cwd=folder,
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


def trained(folder: Path, *words: str, kind: str | None = None) -> Path:
    """`dare train` that must end well, with a kind on two processes as accelerate tells them."""
    if kind is None:
        done = train(folder, *words)
    else:
        source = str(Path(dare.__file__).parents[1])
        given = {"PYTHONPATH": source, **LAUNCHED.get(kind, {})}
        command = ("-m", "dare", "train", *words)
        done = ranks.run(*command, processes=2, folder=folder, variables=given)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "run"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of four steps on one process, and the same after two."""
    folder = tmp_path_factory.mktemp("alone")
    half = trained(folder / "half", *NEW, "--max-steps", "2")
    shutil.copytree(folder / "half", folder / "whole")
    moments = torch.load(half / "checkpoint-2" / "optimizer.pt")["state"]
    assert max(float(one["exp_avg"].abs().max()) for one in moments.values()) > 1e-3
    return trained(folder / "whole", "--resume", "run", "--max-steps", "4"), half


def alike(run: Path, other: Path) -> bool:
    """Whether two runs drew the same prompts and ended at the same weights."""
    drawn, there = (tiny.lines(folder / "selections.jsonl") for folder in (run, other))
    ends = [load_file(folder / "checkpoint-4/model.safetensors") for folder in (run, other)]
    return tiny.close(drawn, there, 1e-4) and apart(*ends) < TOLERANCE


@pytest.mark.parametrize("kind", ["ddp", *KINDS])
def test_a_run_goes_on_from_several_processes_on_one_and_back(
    kind: str, alone: tuple[Path, Path], tmp_path: Path
) -> None:
    whole, half = alone
    two = tmp_path / "two"
    two.mkdir()
    if kind in ("ddp", "fsdp2"):  # as the launcher tells, see below
        together = trained(two, *NEW, "--max-steps", "2", kind=kind)
    else:
        together = trained(two, *NEW, "--max-steps", "2", *TWO, kind)
    assert verify(together / "checkpoint-2") is None
    names = {path.name for path in (together / "checkpoint-2").iterdir()}
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt"} <= names
    assert not any("fsdp" in name or "step" in name for name in names)
    assert alike(trained(tmp_path / "two", "--resume", "run", "--max-steps", "4"), whole)
    shutil.copytree(half.parent, tmp_path / "one")
    again = trained(tmp_path / "one", "--resume", "run", "--max-steps", "4", kind=kind)
    assert alike(again, whole)
    said = (again / "config.yaml").read_text()
    assert f"distributed: {TOLD.get(kind, 'DEEPSPEED')}\n" in said


# Two steps in two launches; each process says what it held of the whole state while it saved and
# while it loaded. Then its file is emptied: who has it mapped still would end with SIGBUS.
HELD = """
import json, os, sys
from pathlib import Path
import tiny, torch
from transformers import TrainerCallback
from dare.training import checkpoints

run, step, rank = Path(sys.argv[1]), int(sys.argv[2]), int(os.environ["RANK"])
said, load = {"kept": [], "loads": []}, torch.load

def watched(real):
    def whole(*given, **named):
        state = real(*given, **named)
        said["kept"].append(len(state["state"]))
        return state
    return whole

def loaded(path, *given, **named):
    if str(path).endswith("optimizer.pt"):
        said["loads"].append([str(named.get("map_location")), named.get("mmap", False)])
    return load(path, *given, **named)

class Empty(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        torch.distributed.barrier()
        if rank == 0 and step == 2:
            os.truncate(run / "checkpoint-1" / "optimizer.pt", 0)
        torch.distributed.barrier()

checkpoints.whole_state = watched(checkpoints.whole_state)
checkpoints.zero.whole_state = watched(checkpoints.zero.whole_state)
torch.load = loaded
saves = {"save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 16}
tiny.trainer(run, max_steps=step, callbacks=[Empty()], **saves).train(step == 2)
Path(f"{run}{rank}").write_text(json.dumps(said))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_state_is_held_by_who_saves_it_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HELD)
    paths = [str(Path(dare.__file__).parents[1]), str(Path(tiny.__file__).parent)]
    given = {**LAUNCHED[kind], "PYTHONPATH": os.pathsep.join(paths)}
    for step in (1, 2):
        words = (str(tmp_path / "held.py"), str(tmp_path / "run"), str(step))
        done = ranks.run(*words, processes=2, variables=given)
        assert done.returncode == 0, done.stderr[-3000:]
        both = [json.loads((tmp_path / f"run{rank}").read_text()) for rank in range(2)]
        weights = len(torch.load(tmp_path / f"run/checkpoint-{step}/optimizer.pt")["state"])
        assert weights > 1
        assert [one["kept"] for one in both] == [[weights], [0]]
        # Neither on each GPU nor in each process's memory.
        assert all(one["loads"] == [["cpu", True]] * (step - 1) for one in both)


@pytest.mark.parametrize("kind", ["ddp", *KINDS])
def test_thirty_steps_of_ragged_lengths_do_not_hang(kind: str, tmp_path: Path) -> None:
    run = trained(tmp_path, *NEW, "--max-steps", "30", "--save-strategy", "no", kind=kind)
    steps = tiny.lines(run / "metrics.jsonl")
    assert len(steps) == 30
    assert len({step["length"] for step in steps}) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_is_killed_ends_the_others_in_a_line(kind: str, tmp_path: Path) -> None:
    done = test_company.launch(tmp_path, "kill", *test_company.NEW, **LAUNCHED[kind])
    assert test_company.since_the_loss(tmp_path) < 60
    assert done.returncode != 0
    (line,) = [one for one in done.stderr.splitlines() if "error: processes = 2" in one]
    assert "checkpoint-2 is intact: continue with dare train --resume run" in line
    if kind != "fsdp2":  # DeepSpeed's start takes too long for more of the same
        return
    words = ("--resume", "run", "--trust")
    again = test_company.launch(tmp_path, "go on", *words, **LAUNCHED[kind])
    assert again.returncode == 0, again.stderr[-3000:]
    steps = [step["step"] for step in tiny.lines(tmp_path / "run" / "metrics.jsonl")]
    assert steps == [0, 1, 2]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"FSDP_VERSION": "1"}, "error: fsdp_version = 1: is not supported: set it to 2"),
        (
            {"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"},
            "error: fsdp_cpu_ram_efficient_loading = True: must be false",
        ),
        (
            {
                "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
                "PARALLELISM_CONFIG_TP_SIZE": "2",
            },
            "error: parallelism_config = True: tensor, context and sequence parallel training are",
        ),
        (
            {"ACCELERATE_MIXED_PRECISION": "bf16"},
            "error: mixed_precision = 'bf16': the recipe has 'no'",
        ),
    ],
)
def test_what_accelerate_tells_against_the_recipe_is_refused(
    variables: dict[str, str], says: str, tmp_path: Path
) -> None:
    given = {**LAUNCHED["fsdp2"], **variables}
    command = ("-m", "dare", "train", *NEW, "--max-steps", "2")
    done = ranks.run(*command, processes=2, folder=tmp_path, variables=given)
    assert done.returncode != 0
    assert says in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="with a GPU they meet there")
def test_processes_that_find_no_gpu_meet_on_the_cpu(tmp_path: Path) -> None:
    words = list(NEW)
    place = words.index("--use-cpu")
    del words[place : place + 2]
    given = {"PYTHONPATH": str(Path(dare.__file__).parents[1]), "ACCELERATE_USE_CPU": "false"}
    command = ("-m", "dare", "train", *words, "--max-steps", "1")
    done = ranks.run(*command, processes=2, folder=tmp_path, variables=given)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.fixture
def command_of(
    dare: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """What `dare train WORDS` starts; its end is the command's own."""

    def found(*words: str) -> list[str]:
        started: list[list[str]] = []

        def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
            started.append(command)
            return subprocess.CompletedProcess(command, 3)

        with monkeypatch.context() as here:
            here.setattr(subprocess, "run", run)
            assert dare("train", *words)[0] == 3
        (command,) = started
        return command

    return found


def test_a_file_of_your_own_goes_to_the_launcher(
    command_of: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "my.yaml").write_text("distributed_type: FSDP\n")
    module, dashed = "accelerate.commands.launch", ["--config_file", "my.yaml"]
    rest = ["-m", "dare", "train", "quickstart", "--max-steps", "2"]
    command = command_of("quickstart", "--accelerate", "my.yaml", "--max-steps", "2")
    assert command == [sys.executable, "-m", module, *dashed, *rest]


@pytest.mark.parametrize(
    ("held", "line"),
    [
        (b"distributed_type: \xff", "'my.yaml': is not YAML: byte 18 is not UTF-8"),
        (b"a: [", "'my.yaml': is not YAML"),
        (b"", "'my.yaml': must be a mapping"),
        (b"FSDP", "'my.yaml': must be a mapping"),
    ],
)
def test_a_file_of_your_own_that_is_no_mapping_starts_nothing(
    held: bytes, line: str, dare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    (tmp_path / "my.yaml").write_bytes(held)
    code, shown, errors = dare("train", "--accelerate", "my.yaml")
    assert (code, shown, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"error: --accelerate = {line}")


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_the_launcher_tells_what_a_shipped_file_says(
    kind: str, command_of: Callable[..., list[str]], tmp_path: Path
) -> None:
    """The launcher itself, with a program that writes down what it is told; test_nodes.py starts
    `dare train` by it."""
    command = command_of("quickstart", *TWO, kind)
    launcher, program = command[1:-4], command[-4:]
    assert program == ["-m", "dare", "train", "quickstart"]
    script = tmp_path / "told.py"
    script.write_text("import json, os\njson.dump({**os.environ}, open(os.environ['RANK'], 'w'))\n")
    done = ranks.run(*launcher, str(script), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    both = [json.loads((tmp_path / rank).read_text()) for rank in "01"]
    for rank, told in enumerate(both):
        assert (told["LOCAL_RANK"], told["WORLD_SIZE"]) == (str(rank), "2")
        assert LAUNCHED.get(kind, {}).items() <= told.items()
        assert ("ACCELERATE_USE_FSDP" in told) == (kind == "fsdp2")
    (place,) = {(told["MASTER_ADDR"], told["MASTER_PORT"]) for told in both}
    assert place[1] != "0"


@deepspeed
@pytest.mark.parametrize(
    ("stage", "variables", "says"),
    [
        ("1", {}, "error: zero_stage = 1: is not supported: set it to 2 or 3"),
        ("2", {"ACCELERATE_USE_CPU": "true"}, "ACCELERATE_USE_CPU = True: accelerate leaves"),
    ],
    ids=["zero1", "zero2"],
)
def test_what_would_not_be_zero_is_refused(
    stage: str, variables: dict[str, str], says: str, tmp_path: Path
) -> None:
    given = {**ZERO, "ACCELERATE_DEEPSPEED_ZERO_STAGE": stage, **variables}
    done = test_company.launch(tmp_path, "nothing", *test_company.NEW, **given)
    assert done.returncode != 0
    assert says in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "variables", "says"),
    [
        (["--accelerate", "fsdp3"], {}, "did you mean 'fsdp2'?, or a file of your own"),
        (["--accelerate", "fsdp2"], {"CUDA_VISIBLE_DEVICES": ""}, "--processes = None: no GPU"),
        (["--accelerate", "ddp"], {"RANK": "0"}, "a launcher has started this process already"),
        (["--processes", "2"], {}, "goes with --accelerate NAME"),
        pytest.param(
            *(["--accelerate", "zero3"], {}, "needs DeepSpeed: pip install 'dare-rl[deepspeed]'"),
            marks=pytest.mark.skipif(find_spec("deepspeed") is not None, reason="it is there"),
        ),
    ],
)
def test_a_launch_that_cannot_be_is_told_in_a_line(
    words: list[str], variables: dict[str, str], says: str, tmp_path: Path
) -> None:
    done = ranks.run("-m", "dare", "train", *NEW, *words, folder=tmp_path, variables=variables)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
