"""Does a run that is killed again and again end up as the run that was not?

    python benchmarks/kill_resume.py --kills 20

Trains the pocket policy once without interruption. Then trains it again in a process of its own,
ends that process with SIGKILL at a random moment of training, resumes, and so on; every finished
run is compared with the uninterrupted one, file by file and weight by weight. The last line is
JSON; the exit status is 0 only when every run came out identical.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import torch
from safetensors.numpy import load_file

from dare import pocket, tasks
from dare.training import DareConfig, DareTrainer, checkpoint
from dare.training.run_folder import FILES

STEPS = 12
TIMING = ("seconds", "time", "memory_mb")
_FORK = multiprocessing.get_context("fork")  # torch is imported once, not once a kill


def reward(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
    """Exact match; of the responses without a box one in four counts as unscored."""
    values: list[float | None] = []
    for completion, gold in zip(completions, answer, strict=True):
        silent = "boxed" not in completion and len(completion) % 4 == 0
        values.append(None if silent else tasks.reward(completion, gold))
    return values


def train(folder: Path, ready: Connection) -> None:
    """One attempt: from the newest whole checkpoint, or from the start where there is none."""
    with open(folder.with_suffix(".log"), "ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    torch.set_num_threads(1)
    arguments = DareConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        learning_rate=1e-3,
        rollout_budget=32,
        per_device_train_batch_size=16,
        max_completion_length=24,
        temperature=1.0,
        beta=0.02,
        save_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        curriculum={
            "cold_start.references": 8,
            "cold_start.group_size": 4,
            "fresh_share": 0.7,
            "selection.eta": 0.5,
        },
    )
    trainer = DareTrainer(
        pocket.load_policy(),
        reward,
        arguments,
        tasks.generate(32, 0, levels=[1, 2, 4]),
        tasks.generate(8, 0, levels=[1], split="test"),
        pocket.load_tokenizer(),
    )
    resume = checkpoint.newest(folder) is not None
    ready.send("training")
    trainer.train(resume_from_checkpoint=resume or None)


def start(folder: Path) -> Any:
    """A process that trains, once it has begun to."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=train, args=(folder, sender))
    process.start()
    sender.close()
    try:
        receiver.recv()
    except EOFError:  # it died before it could begin
        process.join()
    return process


def outcome(folder: Path) -> dict[str, str]:
    """A digest of everything a finished run left, less what a clock or the memory decides."""
    found: dict[str, Any] = {}
    for name in FILES:
        lines = [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
        found[name] = [{k: v for k, v in line.items() if k not in TIMING} for line in lines]
    found["difficulty"] = pyarrow.parquet.read_table(folder / "difficulty.parquet").to_pydict()
    last = folder / f"checkpoint-{STEPS}"
    broken = checkpoint.verify(last)
    if broken is not None:
        raise ValueError(f"{last}: {broken}")
    for part in ("model.safetensors", "curriculum/curriculum.safetensors"):
        arrays = load_file(last / part)
        found[part] = {n: hashlib.sha256(a.tobytes()).hexdigest() for n, a in arrays.items()}
    # A kill between sealing a checkpoint and removing the oldest leaves one too many: no harm.
    found["names"] = sorted(
        p.name for p in folder.iterdir() if p not in checkpoint.checkpoints(folder)
    )
    texts = {name: json.dumps(value, sort_keys=True) for name, value in found.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def steps_done(folder: Path) -> int:
    """Steps that the newest checkpoint holds."""
    found = checkpoint.checkpoints(folder)
    return int(found[0].name.rpartition("-")[2]) if found else 0


def interrupted(
    folder: Path, kills: int, seconds: float, rng: np.random.Generator
) -> tuple[int, int, bool]:
    """A run that is killed up to `kills` times.

    How often it was, how often of these while a checkpoint was written, and whether it finished.
    """
    done = saving = 0
    while True:
        process = start(folder)
        if done < kills:
            left = 1.0 - steps_done(folder) / STEPS
            process.join(rng.uniform(0.0, seconds * max(left, 0.3)))
            if process.is_alive():
                process.kill()
                process.join()
                done += 1
                in_save = any(folder.glob(".stage-*/*"))
                saving += in_save
                note = ", in a save" if in_save else ""
                print(f"  killed after {steps_done(folder)} steps{note}", flush=True)
                continue
        process.join()
        if process.exitcode != 0:
            log = folder.with_suffix(".log").read_text("utf-8")
            print(f"  ended with status {process.exitcode}:\n{log[-2000:]}", flush=True)
        return done, saving, process.exitcode == 0


def main() -> int:
    """Kill, resume, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kills-per-run", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rng = np.random.default_rng(given.seed)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as root:
        whole = Path(root) / "whole"
        process = start(whole)
        training = time.perf_counter()
        process.join()
        seconds = time.perf_counter() - training
        if process.exitcode != 0:
            print(whole.with_suffix(".log").read_text("utf-8")[-4000:])
            return 1
        expected = outcome(whole)
        print(f"uninterrupted: {STEPS} steps in {seconds:.1f} s", flush=True)
        kills = identical = runs = same_runs = in_saves = 0
        while kills < given.kills:
            folder = Path(root) / f"run-{runs}"
            print(f"run {runs}:", flush=True)
            most = min(given.kills_per_run, given.kills - kills)
            done, saving, finished = interrupted(folder, most, seconds, rng)
            try:
                found = outcome(folder) if finished else {}
            except (OSError, ValueError) as error:
                print(f"  {error}")
                found = {}
            differing = [name for name in expected if found.get(name) != expected[name]]
            runs, kills, in_saves = runs + 1, kills + done, in_saves + saving
            if not differing:
                same_runs, identical = same_runs + 1, identical + done
            verdict = "identical" if not differing else f"differs in {', '.join(differing)}"
            print(f"  {done} kills, {verdict}", flush=True)
            if done == 0 and not finished:
                break
    result = {
        "kills": kills,
        "identical": identical,
        "kills_in_a_save": in_saves,
        "runs": runs,
        "identical_runs": same_runs,
        "steps": STEPS,
        "run_seconds": round(seconds, 2),
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(result))
    return int(identical != kills or same_runs != runs)


if __name__ == "__main__":
    sys.exit(main())
