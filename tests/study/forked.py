"""Studies in a process of the server of `ranks`, whose runs are forks of it.

A run that starts a Python of its own spends many times longer on imports than on its work.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ranks
from dare import cli
from dare.study import runner
from dare.study.methods import Study, arms_of

PATIENCE = 180.0


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def started(folder: Path) -> bool:
    return any(folder.glob("checkpoint-*/manifest.json"))


def start_with(process: Any) -> None:
    """Let the study start its runs as `process` instead of a subprocess."""
    runner.subprocess = SimpleNamespace(Popen=process, PIPE=None)  # type: ignore[assignment]


def killed(study: Study) -> None:
    """End with the study when its last run, a Python of its own, is half-way."""
    last = study.jobs()[-1].folder

    def start(command: list[str], **options: Any) -> Any:
        if Path(command[-1]) != last:
            return ranks.Forked(command, **options)
        return subprocess.Popen(command, **{**options, "stdin": subprocess.PIPE})

    start_with(start)
    threading.Thread(target=_send, args=(signal.SIGKILL, last), daemon=True).start()
    study.run()


def interrupted(study: Study) -> None:
    """Ask the study to stop when its last run is half-way; says what became of its runs."""
    start_with(ranks.Forked)
    last = study.jobs()[-1].folder
    threading.Thread(target=_send, args=(signal.SIGINT, last), daemon=True).start()
    outcome = study.run()
    failed = [(str(job.folder), reason) for job, reason in outcome.failed]
    print(json.dumps([failed, [str(job.folder) for job in outcome.interrupted]]))


def _send(number: int, folder: Path) -> None:
    wait_for(lambda: started(folder))
    os.kill(os.getpid(), number)


def run(*words: Any) -> subprocess.CompletedProcess[str]:
    """`python -m forked WORDS`, with the modules that this process finds."""
    path = os.pathsep.join(path for path in sys.path if path)
    return ranks.run("-m", "forked", *map(str, words), variables={"PYTHONPATH": path})


if __name__ == "__main__":
    how, *words = sys.argv[1:]
    if how == "dare":
        start_with(ranks.Forked)
        sys.argv = ["dare", *words]
        cli.main()
    else:
        out, recipe, tokens, truth, *arms = words
        settings: dict[str, Any] = {"seeds": 1, "tokens": int(tokens), "truth": bool(int(truth))}
        study = Study(arms_of([], arms), Path(out), recipe=recipe, **settings)
        (killed if how == "killed" else interrupted)(study)
