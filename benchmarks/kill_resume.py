"""Does a run that is interrupted again and again end up as the run that was not?

    python benchmarks/kill_resume.py --kills 50 --operations -1 --sigterm 20 --sigint 20
    python benchmarks/kill_resume.py --processes 2 --kills 10 --sigterm 5 --pauses 2 --stops 2

Trains the pocket policy with `dare train` once without interruption. Then again and again, and
interrupts it: SIGKILL at a random moment, SIGKILL at every file operation of a save (before each,
and with half of a file written), SIGTERM and Ctrl-C; of two processes one or both, and one that is
stopped for a while or for good. Each time it goes on with `dare train --resume`. Every finished run
is compared with the uninterrupted one, file by file and weight by weight. The last line is JSON;
the exit status is 0 only when every run came out identical and every interruption was told as the
documentation has it.
"""

import argparse
import builtins
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import torch
import transformers.modeling_utils
import yaml
from safetensors.numpy import load_file

import dare.state
from dare import cli, tasks
from dare.runs import checkpoint
from dare.runs.folder import FILES
from dare.training import DareTrainer

TIMING = ("seconds", "time", "memory_mb")
PATIENCE_S = 180.0  # after which a process counts as hanging
LOST_S = 40  # how long a process waits for another
_FORK = multiprocessing.get_context("fork")  # torch is imported once, not once a kill
RECIPE = {
    "model": "pocket",
    "reward": "kill_resume:reward",
    "data": {"tasks": {"count": 32, "seed": 0, "levels": [1, 2, 4]}},
    "eval_data": {"tasks": {"count": 8, "seed": 0, "levels": [1], "split": "test"}},
    "training": {
        "learning_rate": 1e-3,
        "rollout_budget": 32,
        "per_device_train_batch_size": 16,
        "max_completion_length": 24,
        "temperature": 1.0,
        "beta": 0.02,
        "save_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "use_cpu": True,
        "report_to": "none",
        "ddp_timeout": LOST_S,
    },
    "curriculum": {
        "fresh_share": 0.7,
        "selection.eta": 0.5,
    },
}
Moment = tuple[int, bool]  # a file operation by number: before it, or in the middle of it


def reward(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
    """Exact match; of the responses without a box one in four counts as unscored."""
    values: list[float | None] = []
    for completion, gold in zip(completions, answer, strict=True):
        silent = "boxed" not in completion and len(completion) % 4 == 0
        values.append(None if silent else tasks.reward(completion, gold))
    return values


class Operations:
    """File operations of the save at one step, as Python calls them; SIGKILL at a moment."""

    def __init__(self, step: int, moment: Moment | None) -> None:
        self.names: list[str] = []
        self._moment, self._on = moment, False
        for name in ("fsync", "rename", "replace", "mkdir", "rmdir", "unlink", "remove"):
            self._wrap(os, name)
        for holder in (builtins, io):
            self._wrap(holder, "open", middle=lambda *_: None)  # opened, nothing written yet
        self._wrap(torch, "save", middle=self._halve)
        self._wrap(transformers.modeling_utils, "safe_save_file", middle=self._halve)
        self._wrap(dare.state, "save_file", middle=self._halve)
        save: Callable[..., None] = DareTrainer._save_checkpoint

        def watched(trainer: Any, *given: Any) -> None:
            self._on = trainer.state.global_step == step
            save(trainer, *given)
            self._on = False

        setattr(DareTrainer, "_save_checkpoint", watched)  # noqa: B010

    def _wrap(self, holder: Any, name: str, middle: Callable[..., None] | None = None) -> None:
        real = getattr(holder, name)

        def call(*given: Any, **named: Any) -> Any:
            mode = (*given[1:2], "r")[0] if name == "open" else "w"
            if not self._on or mode in ("r", "rb"):
                return real(*given, **named)
            place = len(self.names)
            # Of two processes either may make a folder: the numbers of operations move by a few.
            at, inside = self._moment or (1 << 30, False)
            if place >= at and not inside:
                os.kill(os.getpid(), signal.SIGKILL)
            self.names.append(name if middle is None else f"{name} *")
            self._on = False  # what torch.save does inside is part of it
            try:
                result = real(*given, **named)
            finally:
                self._on = True
            if place >= at and inside and middle is not None:
                middle(*given)
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(holder, name, call)

    @staticmethod
    def _halve(_: Any, path: Any, *__: Any) -> None:
        if isinstance(path, (str, os.PathLike)):
            os.truncate(path, os.path.getsize(path) // 2)


class Bench:
    """What the attempts share: the recipe, how many processes, and how long a run is."""

    def __init__(self, root: Path, steps: int, processes: int) -> None:
        self.root, self.steps, self.processes = root, steps, processes
        self.recipe = root / "recipe.yaml"
        training = {**RECIPE["training"], "max_steps": steps}  # type: ignore[dict-item]
        training["per_device_train_batch_size"] //= processes
        self.recipe.write_text(yaml.safe_dump({**RECIPE, "training": training}))
        self.seconds = 0.0

    def start(self, folder: Path, moment: Moment | None = None, count: bool = False) -> "Attempt":
        """The processes of one attempt, once they train."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        attempt = Attempt(folder)
        for rank in range(self.processes):
            receiver, sender = _FORK.Pipe(duplex=False)
            given = (folder, sender, rank, port, moment, count)
            process = _FORK.Process(target=self._train, args=given)
            process.start()
            sender.close()
            attempt.processes.append(process)
            attempt.pipes.append(receiver)
        for process, pipe in zip(attempt.processes, attempt.pipes, strict=True):
            try:
                pipe.recv()
            except EOFError:  # it died before it could begin
                process.join()
        return attempt

    def _train(
        self, folder: Path, ready: Connection, rank: int, port: int, moment: Any, count: bool
    ) -> None:
        """In the child: `dare train`, from the newest whole checkpoint or from the start."""
        with open(folder.with_suffix(".log"), "ab") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
        torch.set_num_threads(1)
        if self.processes > 1:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
            os.environ |= {"WORLD_SIZE": str(self.processes), "MASTER_ADDR": "127.0.0.1"}
            os.environ["ACCELERATE_USE_CPU"] = "true"
        watched = Operations(self.steps - 1, moment) if (moment or count) and rank == 0 else None
        train = DareTrainer.train_or_stop

        def told(trainer: Any, *given: Any, **named: Any) -> Any:
            ready.send("training")
            return train(trainer, *given, **named)

        setattr(DareTrainer, "train_or_stop", told)  # noqa: B010
        sys.argv = ["dare", "train", "--resume", str(folder), "--trust"]
        if checkpoint.newest(folder) is None:
            sys.argv = ["dare", "train", str(self.recipe), "--trust", "--output-dir", str(folder)]
        try:
            cli.main()
        finally:
            if watched is not None:
                ready.send(watched.names)

    def outcome(self, folder: Path) -> dict[str, str]:
        """A digest of all that a finished run left, less what a clock or the memory decides."""
        found: dict[str, Any] = {}
        for name in FILES:
            lines = [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
            found[name] = [{k: v for k, v in line.items() if k not in TIMING} for line in lines]
        found["difficulty"] = pyarrow.parquet.read_table(folder / "difficulty.parquet").to_pydict()
        for name in ("config.yaml", "recipe.yaml"):
            found[name] = (folder / name).read_text("utf-8").replace(str(folder), "RUN")
        last = folder / f"checkpoint-{self.steps}"
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
        # Nothing of a log was lost, and no resume said that something was.
        said = folder.with_suffix(".log").read_text("utf-8")
        found["told of changed logs"] = "missing or changed" in said
        texts = {name: json.dumps(value, sort_keys=True) for name, value in found.items()}
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}

    def left(self, folder: Path) -> float:
        """Seconds that training from the newest checkpoint on takes about."""
        found = checkpoint.checkpoints(folder)
        done = int(found[0].name.rpartition("-")[2]) if found else 0
        return self.seconds * max(1.0 - done / self.steps, 0.3)


class Attempt:
    """Processes that train in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []

    def wait(self, seconds: float) -> bool:
        """Whether all of them still run after so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and all(one.is_alive() for one in self.processes):
            self.processes[0].join(0.02)
        return all(one.is_alive() for one in self.processes)

    def send(self, number: int, which: list[int]) -> None:
        """A signal to some of them."""
        for rank in which:
            os.kill(self.processes[rank].pid, number)

    def end(self) -> list[int | None]:
        """Their exit codes; None for one that hangs and had to be killed."""
        end = time.monotonic() + PATIENCE_S
        codes: list[int | None] = []
        for process in self.processes:
            process.join(max(0.1, end - time.monotonic()))
            hangs = process.is_alive()
            if hangs:
                process.kill()
                process.join()
            codes.append(None if hangs else process.exitcode)
        return codes

    def said(self) -> str:
        """What they have printed, over all attempts."""
        return self.folder.with_suffix(".log").read_text("utf-8")


def interrupt(kind: str, attempt: Attempt, rng: np.random.Generator) -> str:
    """Interrupt a running attempt; returns what is wrong with how it ended, if anything."""
    count, before = len(attempt.processes), len(attempt.said())
    ranks = list(range(count))
    some = [int(rng.integers(count))] if rng.random() < 0.5 else ranks
    if kind == "pause":
        attempt.send(signal.SIGSTOP, some)
        time.sleep(3.0)
        attempt.send(signal.SIGCONT, some)
        return ""
    if kind in ("kill", "stop"):
        some = some[:1] if kind == "stop" else some
        attempt.send(signal.SIGKILL if kind == "kill" else signal.SIGSTOP, some)
        others = [attempt.processes[rank] for rank in ranks if rank not in some]
        end = time.monotonic() + PATIENCE_S
        for process in others:
            process.join(max(0.1, end - time.monotonic()))
        hangs = any(process.is_alive() for process in others)
        if kind == "stop":
            attempt.send(signal.SIGKILL, some)
        attempt.end()
        said = attempt.said()[before:]
        # A step that was in flight may have been the last.
        codes = {process.exitcode for process in others}
        if hangs or not codes <= {0, 2} or (2 in codes and "error: processes =" not in said):
            return f"the others {'hang' if hangs else f'ended with {codes}'}: {said[-1500:]}"
        return ""
    number = signal.SIGTERM if kind == "sigterm" else signal.SIGINT
    attempt.send(number, some)
    codes = set(attempt.end())
    said = attempt.said()[before:]
    told = "dare train --resume" in said
    # The signal may also come before training listens to it, or in the last step.
    early = codes <= {-number, 1, 128 + number} and "stopping after this step" not in said
    if codes == {0} or (codes == {128 + number} and told) or early:
        return ""
    return f"{kind} ended with {codes}: {said[-1500:]}"


def run(bench: Bench, folder: Path, kind: str, times: int, rng: np.random.Generator) -> Any:
    """A run that is interrupted up to so many times: how often, in a save, what failed."""
    done = saving = 0
    wrong = ""
    while True:
        attempt = bench.start(folder)
        if done < times and attempt.wait(rng.uniform(0.0, bench.left(folder))):
            wrong = interrupt(kind, attempt, rng)
            done += 1
            saving += any(folder.glob(".stage-*/*"))
            if wrong:
                break
            if kind != "pause":
                continue
        codes = attempt.end()
        if set(codes) != {0}:
            wrong = f"ended with {codes}:\n{attempt.said()[-2000:]}"
        break
    return done, saving, wrong


def at_operation(bench: Bench, prepared: Path, folder: Path, moment: Moment) -> str:
    """A run that is killed at a moment of a save; returns what failed."""
    shutil.copytree(prepared, folder)
    attempt = bench.start(folder, moment)
    code = attempt.end()[0]
    if code != -signal.SIGKILL:
        return f"was not killed at {moment}, ended with {code}: {attempt.said()[-1500:]}"
    codes = bench.start(folder).end()
    return "" if set(codes) == {0} else f"ended with {codes}: {attempt.said()[-2000:]}"


def main() -> int:
    """Interrupt, resume, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="SIGKILL at random moments")
    parser.add_argument(
        "--operations",
        type=int,
        default=0,
        help="SIGKILL at so many of the file operations of a save, spread evenly; -1: at all",
    )
    parser.add_argument("--sigterm", type=int, default=0)
    parser.add_argument("--sigint", type=int, default=0)
    parser.add_argument("--pauses", type=int, default=0, help="a process stopped for 3 seconds")
    parser.add_argument("--stops", type=int, default=0, help="one of two stopped for good")
    parser.add_argument("--per-run", type=int, default=4, help="interruptions of one run at most")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.stops and given.processes < 2:
        parser.error("--stops: a single process that is stopped for good has nobody to tell")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.path.insert(0, str(Path(__file__).parent))  # for the reward, in the children
    rng = np.random.default_rng(given.seed)
    began = time.perf_counter()
    found: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        bench = Bench(root, given.steps, given.processes)
        whole = root / "whole"
        attempt = bench.start(whole, count=True)
        training = time.perf_counter()
        names = attempt.pipes[0].recv() if attempt.processes[0].is_alive() else []
        codes = attempt.end()
        bench.seconds = time.perf_counter() - training
        if set(codes) != {0}:
            print(attempt.said()[-4000:])
            return 1
        expected = bench.outcome(whole)
        print(f"uninterrupted: {given.steps} steps in {bench.seconds:.1f} s", flush=True)

        def finish(kind: str, folder: Path, done: int, saving: int, wrong: str) -> None:
            """Compare, count and forget a run."""
            try:
                left = {} if wrong else bench.outcome(folder)
            except (OSError, ValueError) as error:
                left, wrong = {}, str(error)
            differing = [part for part in expected if left.get(part) != expected[part]]
            if differing and not wrong:
                wrong = f"differs in {', '.join(differing)}"
            counts = found.setdefault(
                kind, dict.fromkeys(("times", "identical", "in_a_save", "runs", "same_runs"), 0)
            )
            identical = 0 if wrong else done
            for key, value in zip(
                counts, (done, identical, saving, 1, int(not wrong)), strict=True
            ):
                counts[key] += value
            print(f"{kind}: {done} times, {wrong or 'identical'}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)

        # Of two processes the numbers move by a few: the last of one may not come in another.
        sure = len(names) - (4 if given.processes > 1 else 0)
        moments = [(place, False) for place in range(sure)]
        inside = [(place, True) for place, kind in enumerate(names) if kind.endswith("*")]
        moments += inside[: None if given.processes == 1 else -1]
        if given.operations:
            prepared = root / "prepared"
            codes = bench.start(prepared, (0, False)).end()
            if given.operations > 0:
                chosen = np.linspace(0, len(moments) - 1, given.operations)
                moments = [moments[int(place)] for place in chosen]
            for place, moment in enumerate(moments):
                folder = root / f"operation-{place}"
                wrong = at_operation(bench, prepared, folder, moment)
                print(f"{names[moment[0]]} {moment}: ", end="")
                finish("operation", folder, 1, 1, wrong)
        wanted = {"kill": given.kills, "sigterm": given.sigterm, "sigint": given.sigint}
        wanted |= {"pause": given.pauses, "stop": given.stops}
        for kind, total in wanted.items():
            for attempts in range(3 * total):  # some runs end before they are interrupted
                times = min(given.per_run, total - found.get(kind, {}).get("times", 0))
                if times <= 0:
                    break
                folder = root / f"{kind}-{attempts}"
                finish(kind, folder, *run(bench, folder, kind, times, rng))
    same = all(c["times"] == c["identical"] and c["runs"] == c["same_runs"] for c in found.values())
    result = {
        "identical": same,
        "processes": given.processes,
        "steps": given.steps,
        "operations_of_a_save": len(names),
        **found,
        "run_seconds": round(bench.seconds, 2),
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(result))
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
