"""One run of a study in a process of its own: `python -m dare.study.worker FOLDER`.

The process ends with its study: where that is killed, nothing goes on writing into the folder.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

from dare.study.jobs import INTERRUPTED, SEED, Job

_WAIT = 60.0  # for a process of an earlier study to leave the folder


def main(folder: Path) -> int:
    """Run the job of a folder to its end; returns the exit code."""
    if stat.S_ISFIFO(os.fstat(0).st_mode):  # started by a study, not by hand
        threading.Thread(target=_leave_with_the_study, daemon=True).start()
    from dare.runs.folder import sole

    with sole(folder, "folder", wait=_WAIT):
        return run(folder)


def run(folder: Path) -> int:
    """Train from the newest checkpoint or from the start, then measure and mark as done."""
    import torch
    from transformers.utils import logging

    from dare.runs.files import write_json
    from dare.study.estimator_runs import SeedJob
    from dare.study.single import estimation_error, train

    logging.disable_progress_bar()
    torch.set_num_threads(1)  # a study runs side by side; threads would wait for each other
    if (folder / SEED).is_file():
        return 0 if SeedJob.load(folder).run(show=False) else INTERRUPTED
    job = Job.load(folder)
    if job.done:
        return 0
    resume = job.resumable()
    print("resuming" if resume else "starting", flush=True)
    trainer = train(job.recipe, folder, job.tokens, resume=resume)
    if trainer.generated_tokens < job.tokens:
        return INTERRUPTED
    if job.truth:
        write_json(folder / "estimation.json", estimation_error(trainer))
    steps = trainer.state.global_step
    job.finish({"steps": steps, "generated_tokens": trainer.generated_tokens})
    return 0


def _leave_with_the_study() -> None:
    """The study holds the other end of stdin; it closes when the study ends, however it ends."""
    while os.read(0, 4096):
        pass
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
