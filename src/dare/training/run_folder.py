"""The run folder: a stable format that reports and outside tools read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

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
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / name, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(_plain(record), allow_nan=False) + "\n")

    def append_evaluation(self, record: Mapping[str, Any]) -> None:
        """Add a line to eval.jsonl, unless the last one is of the same step (after a resume)."""
        path = self.path / "eval.jsonl"
        if self.writes and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            if lines and json.loads(lines[-1])["step"] == record["step"]:
                return
        self.append("eval.jsonl", record)

    def rewind(self, step: int) -> None:
        """Forget every line of a step at or after `step`, and a last line that was cut off."""
        if not self.writes:
            return
        for name in FILES:
            path = self.path / name
            if not path.exists():
                continue
            kept = []
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    record = json.loads(line)
                except json.JSONDecodeError:
                    break
                # An evaluation at step n is of the policy after n updates, training lines are of
                # the n-th step counted from 0.
                last = step if name == "eval.jsonl" else step - 1
                if record["step"] <= last:
                    kept.append(line)
            temporary = path.with_suffix(".tmp")
            temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            os.replace(temporary, path)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Everything resolved, with versions, as config.yaml."""
        if self.writes:
            self.path.mkdir(parents=True, exist_ok=True)
            text = yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)
            (self.path / "config.yaml").write_text(text, encoding="utf-8")

    def write_table(self, table: Mapping[str, Any], name: str = "difficulty.parquet") -> None:
        """The difficulty table, or what `name` says, replaced as a whole."""
        if not self.writes:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        import pyarrow
        import pyarrow.parquet

        temporary = self.path / f"{name}.tmp"
        pyarrow.parquet.write_table(pyarrow.table(dict(table)), temporary)
        os.replace(temporary, self.path / name)


def _plain(value: Any) -> Any:
    """JSON- and YAML-able: NumPy scalars become numbers, NaN and infinities null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)
