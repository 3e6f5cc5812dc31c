"""Checkpoints that are complete or absent: staged, hashed, synced, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from dare.errors import InvalidInput
from dare.state import sync
from dare.text import legible

MANIFEST = "manifest.json"
_NAME = re.compile(r"checkpoint-([0-9]{1,15})")


def seal(staged: Path, final: Path) -> None:
    """Write the manifest, flush everything to disk and move the folder into place."""
    files = sorted(path for path in staged.rglob("*") if path.is_file())
    manifest = {str(path.relative_to(staged)): _digest(path) for path in files}
    manifest[MANIFEST] = _own_digest(manifest)
    (staged / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for path in [*files, staged / MANIFEST]:
        sync(path)
    for folder in [*(path for path in staged.rglob("*") if path.is_dir()), staged]:
        sync(folder)
    if final.exists():
        shutil.rmtree(final)
    os.rename(staged, final)
    sync(final.parent)


def verify(folder: Path, seen: str | None = None) -> str | None:
    """Why a checkpoint cannot be trusted, or None. Where another process trusts it and has `seen`
    this `identity`, its files need only be readable here: hashing takes all that storage gives."""
    path, name = folder / MANIFEST, MANIFEST
    try:
        if not path.is_file():
            return "it has no manifest"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        # An entry that is gone would take its file along: a fresh optimiser, say, and no word.
        own = manifest.pop(MANIFEST, None)
        if own != _own_digest(manifest):
            return "its manifest is damaged, or an earlier version of DARE wrote it"
        if seen not in (None, own):
            return "it is another checkpoint than the first process has there"
        for name, digest in manifest.items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if seen is not None:
                _touch(folder / name)
            elif _digest(folder / name) != digest:
                return f"{name} is damaged"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return "its manifest is damaged"  # not JSON, not even text, or no mapping
    return None


def identity(folder: Path) -> str:
    """What tells a checkpoint that verifies from any other."""
    return str(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))[MANIFEST])


def checkpoints(run: Path) -> list[Path]:
    """Checkpoint folders of a run, newest first."""
    found = [
        (int(match[1]), path)
        for path in run.glob("checkpoint-*")
        if (match := _NAME.fullmatch(path.name)) and path.is_dir()
    ]
    return [path for _, path in sorted(found, reverse=True)]


def in_the_way(run: Path) -> Path | None:
    """What has a checkpoint's name and is no folder: one could not be moved into its place."""
    found = (path for path in run.glob("checkpoint-*") if _NAME.fullmatch(path.name))
    return next((path for path in sorted(found) if not path.is_dir()), None)


def newest(run: Path) -> Path | None:
    """The newest checkpoint that verifies; damaged ones are named and passed over."""
    for path in checkpoints(run):
        reason = verify(path)
        if reason is None:
            return path
        print(legible(f"passing over {path}: {reason}"))
    return None


def chosen(run: Path, wanted: str | bool) -> Path | None:
    """The checkpoint to resume from: a folder by name, or the newest of the run for True."""
    if wanted is True:
        return newest(run)
    path = Path(str(wanted))
    reason = verify(path)
    if reason is not None:
        fix = f"{reason}; resume from another one, or from the run's newest with --resume"
        raise InvalidInput("resume_from_checkpoint", str(path), fix)
    return path


def how_to_continue(run: Path, trust: bool = False) -> str:
    """The command, or the call for a run that a script of the user's began. With `trust` it runs
    code that the user has just run."""
    if (run / "recipe.yaml").is_file():
        return f"dare train --resume {run}{' --trust' if trust else ''}"
    return f"trainer.train(resume_from_checkpoint=True) and output_dir={str(run)!r}"


def set_aside(run: Path, step: int) -> None:
    """Hide the checkpoints after `step`, where a run goes on from an earlier one: the newest would
    be those of the branch that it leaves. They are there until it has saved one of its own."""
    for path in checkpoints(run):
        if int(path.name.rpartition("-")[2]) > step:
            print(f"setting {path} aside: the run goes on from step {step}", flush=True)
            hidden = run / f".aside-{path.name}"
            shutil.rmtree(hidden, ignore_errors=True)
            os.rename(path, hidden)


def rotate(run: Path, keep: int | None, best: int | None = None, *, saved: bool = False) -> None:
    """Remove all but the newest `keep` checkpoints, and stages that a crash left behind."""
    for path in [*run.glob(".stage-*"), *(run.glob(".aside-*") if saved else ())]:
        shutil.rmtree(path, ignore_errors=True)
    if keep is not None and keep > 0:
        spared = run / f"checkpoint-{best}"
        for path in [path for path in checkpoints(run)[keep:] if path != spared]:
            shutil.rmtree(path, ignore_errors=True)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _touch(path: Path) -> None:
    with open(path, "rb") as file:
        file.read(1)


def _own_digest(manifest: dict[str, str]) -> str:
    """Of the manifest itself, without this entry."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
