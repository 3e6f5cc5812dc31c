"""What a study shows while it runs: a bar for all runs and one for each that is under way."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dare.study.jobs import Job

_TAIL = 1 << 16
_EVERY = 1.0


class StudyProgress:
    """Bars on a terminal; elsewhere a line when a run ends."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self._console = console or Console(stderr=True, highlight=False, quiet=quiet)
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

    def started(self, job: Job) -> None:
        """A run has begun."""
        self._tasks[job.folder] = self._bars.add_task(job.title, total=job.tokens, figures="")

    def update(self, job: Job) -> None:
        """Look at most once a second what a run has written."""
        now = time.monotonic()
        if self._bars.disable or now - self._looked.get(job.folder, 0.0) < _EVERY:
            return
        self._looked[job.folder] = now
        line = last_record(job.folder / "metrics.jsonl")
        if line:
            tokens = int(line["generated_tokens_total"])
            figures = f"step {line['step'] + 1}, {tokens:,} of {job.tokens:,} tokens"
            done = min(tokens, job.tokens)
            self._bars.update(self._tasks[job.folder], completed=done, figures=figures)

    def ended(self, job: Job, trouble: str | None) -> None:
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
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    try:
        record: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return record
