"""Jobs side by side: a process each, nothing finished is repeated, one failure stops no other."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dare.errors import InvalidInput, require
from dare.study.jobs import Job
from dare.study.stopping import StopRequests
from dare.study.study_progress import StudyProgress
from dare.study.worker import INTERRUPTED


@dataclass
class Outcome:
    """What became of the jobs, each in one of the lists."""

    kept: list[Job] = field(default_factory=list)
    """Finished before this call."""
    done: list[Job] = field(default_factory=list)
    failed: list[tuple[Job, str]] = field(default_factory=list)
    """With the reason, in one line."""
    interrupted: list[Job] = field(default_factory=list)
    """Stopped or never started, because the study was asked to stop."""


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    slot: int
    began: float
    late: bool = False


def run_jobs(
    jobs: Sequence[Job],
    workers: int = 1,
    devices: Sequence[str] = ("cpu",),
    limit: float | None = None,
    progress: StudyProgress | None = None,
) -> Outcome:
    """Run what is not done yet, at most `workers` at a time.

    Worker k gets device k modulo their number: `cpu` or the index of a GPU. A run that takes more
    than `limit` seconds is ended and counts as failed. On Ctrl-C or SIGTERM the runs finish their
    step, save and stop; a second one ends them at once.
    """
    require(workers >= 1, "--workers", workers, "needs at least one")
    outcome = Outcome(kept=[job for job in jobs if job.done])
    waiting = [job for job in jobs if not job.done]
    progress = progress or StudyProgress(quiet=True)
    running: list[_Running] = []
    asked = 0
    with StopRequests() as stop, progress:
        progress.begin(len(jobs), len(outcome.kept))
        try:
            while running or (waiting and not stop.count):
                while waiting and len(running) < workers and not stop.count:
                    slot = min(set(range(workers)) - {item.slot for item in running})
                    running.append(_start(waiting.pop(0), slot, devices[slot % len(devices)]))
                    progress.started(running[-1].job)
                time.sleep(0.1)
                if stop.count > asked:
                    asked = stop.count
                    progress.say(
                        "stopping: the runs finish their step and save; ask again to end them now"
                        if asked == 1
                        else "ending the runs"
                    )
                    for item in running:
                        (item.process.terminate if asked == 1 else item.process.kill)()
                for item in [item for item in running if _over(item, limit)]:
                    running.remove(item)
                    _note(item, outcome, progress, stopping=asked > 0)
                for item in running:
                    progress.update(item.job)
        finally:
            for item in running:  # only after an error of our own
                item.process.kill()
                item.process.wait()
    outcome.interrupted += waiting
    return outcome


@contextmanager
def sole_study(out: Path) -> Iterator[None]:
    """One study a folder at a time; the lock goes with the process, however it ends."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fix = "another study runs in it; wait for that one or choose another folder"
            raise InvalidInput("--out", str(out), fix) from None
        yield


def _start(job: Job, slot: int, device: str) -> _Running:
    job.prepare()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["CUDA_VISIBLE_DEVICES"] = "" if device == "cpu" else device
    # The run imports what this process would, a reward function of yours included.
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
    command = [sys.executable, "-P", "-m", "dare.study.worker", str(job.folder)]
    with open(job.log, "wb") as log:
        # Its own session: Ctrl-C reaches the study alone, which then asks the runs to stop. The
        # pipe to its stdin closes when this process is gone, and the run leaves with it.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    return _Running(job, process, slot, time.monotonic())


def _over(item: _Running, limit: float | None) -> bool:
    """Whether the process has ended; one that is too late is ended."""
    if item.process.poll() is not None:
        return True
    if limit is not None and not item.late and time.monotonic() - item.began > limit:
        item.late = True
        item.process.kill()
    return False


def _note(item: _Running, outcome: Outcome, progress: StudyProgress, stopping: bool) -> None:
    assert item.process.stdin is not None
    item.process.stdin.close()
    code, job = item.process.returncode, item.job
    if code == 0 and job.done:
        outcome.done.append(job)
        progress.ended(job, None)
    elif stopping and (code == INTERRUPTED or code < 0):
        outcome.interrupted.append(job)
        progress.ended(job, "stopped; goes on from its checkpoint next time")
    else:
        reason = "took too long" if item.late else f"exit code {code}: {last_line(job.log)}"
        outcome.failed.append((job, reason))
        progress.ended(job, f"failed ({reason}); see {job.log}")


def last_line(path: Path) -> str:
    """The last words of a log."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
