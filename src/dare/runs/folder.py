"""The run folder: a stable format that reports and outside tools read."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dare.errors import InvalidInput, require
from dare.runs.files import dump_yaml, read_whole, read_yaml, write_whole
from dare.text import legible

FILES = (
    "metrics.jsonl",
    "selections.jsonl",
    "samples.jsonl",
    "landscape.jsonl",
    "eval.jsonl",
)


class RunFolder:
    """Appends one JSON object a line; a resumed run first drops what came after its checkpoint."""

    def __init__(self, folder: str | Path, *, writes: bool = True) -> None:
        self.path = Path(folder)
        self.writes = writes

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add a line to one of FILES."""
        if not self.writes:
            return
        with self._writing(name), open(self.path / name, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(plain(record), allow_nan=False) + "\n")

    def append_evaluation(self, record: Mapping[str, Any]) -> None:
        """Add a line to eval.jsonl, unless the last one is of the same step."""
        path = self.path / "eval.jsonl"
        if self.writes and path.is_file():
            with self._writing("eval.jsonl"):
                last = read_whole(path).splitlines()[-1:]
            if last and _step_of(last[0]) == record["step"]:
                return
        self.append("eval.jsonl", record)

    def finished(self) -> bool:
        """Whether it holds a run that has all of its steps, with checkpoints or without; damage
        that leaves it open is taken for one."""
        try:
            known = map(_step_of, read_whole(self.path / "metrics.jsonl").splitlines())
            done = max((step + 1 for step in known if step is not None), default=0)
            steps = read_yaml(self.path / "config.yaml").get("steps")
        except FileNotFoundError:
            return False
        except (OSError, InvalidInput):
            return True
        return done > 0 and (not isinstance(steps, int) or done >= steps)

    def marks(self) -> dict[str, list[Any]]:
        """Size and digest of every log, as a checkpoint keeps them."""
        found = {}
        for name in FILES:
            if (self.path / name).is_file():
                with self._writing(name):
                    held = read_whole(self.path / name)
                found[name] = [len(held), hashlib.sha256(held).hexdigest()]
        return found

    def rewind(self, step: int, marks: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Forget every line of a step at or after `step`, and what is no line of a step: the last
        one may have been cut off, and any other is told of. So is a log that does not begin as it
        was when `marks` were taken."""
        marks, changed = marks or {}, []
        for name in FILES if self.writes else ():
            path = self.path / name
            if not os.path.lexists(path):
                changed += [name] * (name in marks)
                continue
            # An evaluation at step n is of the policy after n updates, training lines are of the
            # n-th step counted from 0.
            last = step if name == "eval.jsonl" else step - 1
            with self._writing(name):
                held = read_whole(path) if path.exists() else b""  # a link to nothing
                size, digest = marks.get(name, (0, None))
                if digest not in (None, hashlib.sha256(held[:size]).hexdigest()):
                    changed.append(name)
                lines = held.split(b"\n")
                known = [(line, _step_of(line)) for line in lines]
                junk = sum(place is None for line, place in known[:-1] if line.strip())
                if junk:
                    print(f"{path}: {junk} lines are no records of a step; dropped", flush=True)
                kept = [line for line, place in known if place is not None and place <= last]
                self._replace(name, b"".join(line + b"\n" for line in kept))
        if changed:
            told = "lines before that step are missing or changed; the run itself goes on unchanged"
            print(f"{self.path}: {', '.join(changed)} at step {step}: {told}", flush=True)

    def write_yaml(self, name: str, values: Mapping[str, Any]) -> None:
        """A mapping as a whole file: config.yaml, everything resolved, or recipe.yaml."""
        if self.writes:
            self._replace(name, dump_yaml(plain(values)).encode())

    def _replace(self, name: str, content: bytes) -> None:
        """As a whole or not at all."""
        with self._writing(name):
            write_whole(self.path / name, content)

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            fix = (
                f"{name} cannot be written ({error.strerror or error}); mend that, then go on with "
                f"dare train --resume {self.path}"
            )
            raise InvalidInput("output_dir", str(self.path), fix) from error

    def write_table(self, table: Mapping[str, Any], name: str = "difficulty.parquet") -> None:
        """The difficulty table, or what `name` says, replaced as a whole."""
        if not self.writes:
            return
        import pyarrow
        import pyarrow.parquet

        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.table(dict(table)), sink)
        self._replace(name, sink.getvalue().to_pybytes())


def usable(folder: str) -> Path:
    """Refuse an output_dir that no run can be written to, before anything is loaded or made;
    returns the part of its path that is there."""
    fix = "name a folder that can be written to"
    require(folder and "\0" not in folder, "output_dir", folder, fix)
    try:
        path = Path(folder).resolve()
        there = next(one for one in (path, *path.parents) if one.exists())
    except (OSError, RuntimeError) as error:  # a name that is too long, a circle of links
        raise InvalidInput("output_dir", folder, f"{fix} ({error})") from None
    require(there.is_dir(), "output_dir", folder, f"{there} is a file; {fix}")
    fix = f"{there} is not yours to write to, or to list; {fix}"
    # Where its checkpoints cannot be listed, a run would be begun over them.
    needed = os.W_OK | os.X_OK | (os.R_OK if there == path else 0)
    require(os.access(there, needed), "output_dir", folder, fix)
    return there


def remove_empty(folder: Path, there: Path) -> None:
    """Take back folders that were made for a run that has not begun, down to what was there."""
    with contextlib.suppress(OSError):
        while folder != there and there in folder.parents:
            folder.rmdir()
            folder = folder.parent


_HELD: dict[Path, tuple[int, int]] = {}  # folders locked here, by process and thread


@contextlib.contextmanager
def sole(folder: Path, field: str = "output_dir", wait: float = 0.0) -> Iterator[None]:
    """One process at a time writes a run. The kernel holds the lock: it goes with the process,
    however that ends, and no child inherits it. Whoever comes second is told who is there."""
    me, folder = (os.getpid(), threading.get_ident()), folder.resolve()
    if _HELD.get(folder) == me:  # a study's job around its trainer
        yield
        return
    there = next(one for one in (folder, *folder.parents) if one.exists())
    with contextlib.ExitStack() as stack:
        stack.callback(remove_empty, folder, there)
        end = time.monotonic() + wait
        while True:
            other = _lock(folder, field, stack)
            if other is None:
                break
            fix = f"is being written by {other}; wait for it or end it, or choose another folder"
            require(time.monotonic() < end, field, str(folder), fix)
            time.sleep(0.2)
        _HELD[folder] = me
        stack.callback(_HELD.pop, folder)
        yield


def _lock(folder: Path, field: str, stack: contextlib.ExitStack) -> str | None:
    """Lock the folder until the stack ends; returns who has locked it otherwise."""
    path = folder / ".lock"
    if _HELD.get(folder, (0, 0))[0] == os.getpid():  # to open it again would drop the lock
        return "another thread of this process"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # If it were a link, the file behind that would be emptied.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        file = os.fdopen(handle, "r+", encoding="utf-8", errors="replace")  # closed with the stack
    except OSError as error:
        fix = f"cannot be written to ({error.strerror or error}); choose another folder"
        raise InvalidInput(field, str(folder), fix) from None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        with file:
            file.seek(0)
            return legible(file.read(200).strip()) or "another process"
    except OSError as error:
        print(f"{folder} cannot be locked ({error.strerror}): start no second run there")
    else:
        named = path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino
        if not named:  # its owner left and took the name along just now
            file.close()
            return _lock(folder, field, stack)
    stack.callback(file.close)
    stack.callback(_unlink, path)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError):  # on a full disk it holds without a name
        file.truncate(0)
        owner = f"process {os.getpid()} on {socket.gethostname()} since {since} ({sys.argv[0]})"
        os.write(file.fileno(), f"{owner}\n".encode("utf-8", "backslashreplace"))
    return None


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):  # around this alone: what ends a run must be heard of
        path.unlink()


def _step_of(line: bytes) -> int | None:
    """The step of a line of a log, None where it has none."""
    try:
        step = json.loads(line.decode())["step"]  # of bytes it would take UTF-16 too
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None


def plain(value: Any) -> Any:
    """JSON- and YAML-able: NumPy scalars become numbers, NaN and infinities null."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)
