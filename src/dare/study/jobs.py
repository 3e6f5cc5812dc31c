"""A job: one run of a study, its folder, and what of it is done."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from dare.errors import require
from dare.runs import checkpoint
from dare.runs.files import read_json, write_json
from dare.runs.methods import DONE, JOB
from dare.state import load_state

INTERRUPTED = 75
"""Exit code of a run that was asked to stop; it goes on from its checkpoint next time."""


SEED = "seed.json"
"""What a process of a study of estimators is to do; it goes before job.json."""


class Task(ABC):
    """What has a process of its own: `prepare` writes into the folder what that process reads."""

    folder: Path
    MARK: ClassVar[str] = DONE
    """The file that says it is finished."""
    METRICS: ClassVar[str] = "metrics.jsonl"

    @property
    def log(self) -> Path:
        """What its process prints."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def done(self) -> bool:
        """Finished, in this call or an earlier one."""
        return (self.folder / self.MARK).is_file()

    @property
    @abstractmethod
    def title(self) -> str:
        """For people."""

    @property
    @abstractmethod
    def total(self) -> int:
        """All that is to be done, in tokens or steps."""

    @abstractmethod
    def gone(self, line: Mapping[str, Any]) -> tuple[int, str]:
        """How far it is by the last line of its metrics, as a number and in words."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the folder ready."""


@dataclass(frozen=True)
class Job(Task):
    """Everything that a run is made of; equal jobs are the same run."""

    name: str
    preset: str
    seed: int
    tokens: int
    recipe: dict[str, Any]
    settings: dict[str, Any]
    """The curriculum's, resolved: a default that changes with a version makes another run, too."""
    truth: bool
    folder: Path

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.name}, seed {self.seed}"

    @property
    def total(self) -> int:
        """Tokens."""
        return self.tokens

    def gone(self, line: Mapping[str, Any]) -> tuple[int, str]:
        """How far the run is by the last line of its metrics, as a number and in words."""
        tokens = int(line["generated_tokens_total"])
        words = f"step {line['step'] + 1}, {tokens:,} of {self.tokens:,} tokens"
        return min(tokens, self.tokens), words

    def definition(self) -> dict[str, Any]:
        """The job without its place, as job.json holds it."""
        values = {key: value for key, value in asdict(self).items() if key != "folder"}
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain

    def check(self) -> None:
        """Refuse a folder that holds another run: its results would pass for this one's."""
        path = self.folder / JOB
        if not path.is_file():
            strange = self.folder.is_dir() and any(self.folder.iterdir())
            fix = "holds files that no study wrote; choose another --out"
            require(not strange, "folder", str(self.folder), fix)
            return
        before, now = read_json(path), self.definition()
        fix = "was written by an earlier version; choose another --out"
        require(isinstance(before, dict) and "settings" in before, "folder", str(self.folder), fix)
        changed = _differences(before, now)
        fix = f"holds this run with {', '.join(changed[:3])}; choose another --out"
        require(not changed, "folder", str(self.folder), fix)

    def prepare(self) -> None:
        """Write job.json; nothing else in the folder of a stranger says what is run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / SEED).unlink(missing_ok=True)
        write_json(self.folder / JOB, self.definition())

    @classmethod
    def load(cls, folder: Path) -> Job:
        """What `prepare` wrote."""
        values = json.loads((folder / JOB).read_text(encoding="utf-8"))
        return cls(**values, folder=folder)

    def resumable(self) -> bool:
        """Whether the newest good checkpoint lies inside the budget; otherwise all is cleared."""
        found = checkpoint.newest(self.folder) if self.folder.is_dir() else None
        if found is not None:
            meta = load_state(found / "curriculum")["meta"]
            if int(meta["generated_tokens_total"]) < self.tokens:
                return True
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in (JOB, ".lock"):
                path.unlink()
        return False

    def finish(self, record: Mapping[str, Any]) -> None:
        """The mark that the run need not be repeated; its checkpoints have served their turn."""
        write_json(self.folder / DONE, record)
        for path in [*checkpoint.checkpoints(self.folder), *self.folder.glob(".stage-*")]:
            shutil.rmtree(path, ignore_errors=True)


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    """'tokens = 300, now 400' for every setting that has changed."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return [] if before == now else [f"{path} = {before!r}, now {now!r}"]
    found = []
    for name in dict.fromkeys([*before, *now]):
        where = f"{path}.{name}" if path else str(name)
        found += _differences(before.get(name), now.get(name), where)
    return found
