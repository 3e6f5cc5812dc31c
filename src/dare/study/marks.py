"""Files that mark the run folder of a study: what it is to do, and that it is done."""

from __future__ import annotations

JOB, DONE = "job.json", "done.json"
