"""Curriculum state on disk: arrays in safetensors, scalars in JSON, complete or absent."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from dare.errors import InvalidInput, first_line

ARRAYS, META = "curriculum.safetensors", "curriculum.json"


def save_state(state: Mapping[str, Any], folder: str | Path) -> None:
    """Write {'arrays', 'meta'} as a new folder: a temporary one first, synced, then renamed."""
    target = Path(folder)
    if target.exists():
        raise InvalidInput("folder", str(target), "exists already; choose another or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        arrays = {name: np.ascontiguousarray(array) for name, array in state["arrays"].items()}
        save_file(arrays, temporary / ARRAYS)
        # NaN is not JSON; a state that holds one would not load elsewhere.
        text = json.dumps(state["meta"], allow_nan=False, indent=1)
        (temporary / META).write_text(text, encoding="utf-8")
        for name in (ARRAYS, META):
            sync(temporary / name)
        sync(temporary)
        os.rename(temporary, target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def load_state(folder: str | Path) -> dict[str, Any]:
    """Read what `save_state` wrote."""
    source = Path(folder)
    for name in (ARRAYS, META):
        if not (source / name).is_file():
            raise InvalidInput("folder", str(source), f"has no {name}; is it a curriculum state?")
    name = META
    try:
        meta = json.loads((source / META).read_text(encoding="utf-8"))
        if not isinstance(meta, dict):
            raise TypeError(f"it is no mapping but {type(meta).__name__}")
        name = ARRAYS
        return {"arrays": load_file(source / ARRAYS), "meta": meta}
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise InvalidInput(
            "folder", str(source), f"{name} is damaged: {first_line(error)}"
        ) from None


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
