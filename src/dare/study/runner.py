"""Jobs side by side: a process each, nothing finished is repeated, one failure stops no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dare.errors import require
from dare.study.jobs import INTERRUPTED, Task
from dare.training.callbacks import asked_to_stop


@dataclass
class Outcome:
    """What became of the jobs, each in one of the lists."""

    kept: list[Task] = field(default_factory=list)
    """Finished before this call."""
    done: list[Task] = field(default_factory=list)
    failed: list[tuple[Task, str]] = field(default_factory=list)
    """With the reason, in one line."""
    interrupted: list[Task] = field(default_factory=list)
    """Stopped or never started, because the study was asked to stop."""


@dataclass
class _Running:
    job: Task
    process: subprocess.Popen[bytes]
    slot: int
    began: float
    late: bool = False


def run_jobs(
    jobs: Sequence[Task],
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
    asked, stop = 0, list[int]()
    with asked_to_stop(lambda number, _: stop.append(number)), progress:
        progress.begin(len(jobs), len(outcome.kept))
        try:
            while running or (waiting and not stop):
                while waiting and len(running) < workers and not stop:
                    slot = min(set(range(workers)) - {item.slot for item in running})
                    job = waiting.pop(0)
                    progress.started(job)
                    try:
                        running.append(_start(job, slot, devices[slot % len(devices)]))
                    except OSError as error:  # its folder cannot be written, say
                        outcome.failed.append((job, str(error)))
                        progress.ended(job, f"failed ({error})")
                time.sleep(0.1)
                if len(stop) > asked:
                    asked = len(stop)
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


def _start(job: Task, slot: int, device: str) -> _Running:
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


_TAIL = 1 << 16
_EVERY = 1.0


class StudyProgress:
    """Bars on a terminal; elsewhere a line when a run ends."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=quiet)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )
        self._tasks: dict[Path, TaskID] = {}
        self._looked: dict[Path, float] = {}
        self._total = self._ended = 0
        self._all: TaskID | None = None

    def __enter__(self) -> StudyProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False, soft_wrap=True)

    def begin(self, total: int, kept: int) -> None:
        """How many runs there are, and how many of them were finished before."""
        self._total, self._ended = total, kept
        if kept:
            self.say(f"{kept} of {total} runs are finished already")
        self._all = self._bars.add_task("all runs", total=total, figures="")
        self._show_all()

    def started(self, job: Task) -> None:
        """A run has begun."""
        self._tasks[job.folder] = self._bars.add_task(job.title, total=job.total, figures="")

    def update(self, job: Task) -> None:
        """Look at most once a second what a run has written."""
        now = time.monotonic()
        if self._bars.disable or now - self._looked.get(job.folder, 0.0) < _EVERY:
            return
        self._looked[job.folder] = now
        line = last_record(job.folder / job.METRICS)
        if line:
            done, figures = job.gone(line)
            self._bars.update(self._tasks[job.folder], completed=done, figures=figures)

    def ended(self, job: Task, trouble: str | None) -> None:
        """A run is over; `trouble` says what went wrong."""
        self._ended += trouble is None
        self._bars.remove_task(self._tasks.pop(job.folder))
        self._show_all()
        self.say(f"[{self._ended}/{self._total}] {job.title}: {trouble or 'done'}")

    def _show_all(self) -> None:
        assert self._all is not None
        figures = f"{self._ended} of {self._total}"
        self._bars.update(self._all, completed=self._ended, figures=figures)


def last_record(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file that may be growing."""
    if not path.is_file():
        return None
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().split(b"\n")[:-1]
        record = json.loads(lines[-1])
    except (OSError, IndexError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
