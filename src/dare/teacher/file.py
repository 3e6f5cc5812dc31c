"""A DOTS head on disk: one safetensors file that says which embeddings it reads.

Beside its parameters the file has the embeddings of a few fixed texts by the embedder that it was
trained on. A run embeds the same texts with its own policy: another model, chat template or system
prompt of the same width shows at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput, require
from dare.runs.files import write_whole
from dare.teacher.head import TeacherHead

FORMAT = "dare-teacher-1"
PROBES = ("3+4*2=", "What is 7 + 5? Explain.", "Let x^2 = 49 with x < 0. Find x.")
"""Texts whose embeddings tell one embedder from another."""
_TOLERANCE = 0.05  # relative; half precision moves an embedding by less than 0.01


@dataclass(frozen=True)
class SavedHead:
    """A head and what is known of it."""

    head: TeacherHead
    embedder: str
    """Name of the model whose embeddings it was trained on."""
    probes: Array | None = None
    """Embeddings of PROBES by it; None where it was trained on given embeddings."""
    about: dict[str, Any] = field(default_factory=dict)
    """What it was trained on, and how well it predicted."""

    def check_width(self, width: int, name: str) -> None:
        """Refuse embeddings of another width."""
        fix = (
            f"was trained on embeddings of {self.embedder!r} with {self.head.width} numbers, those "
            f"here have {width}; train one on these with `dare teacher fit`"
        )
        require(width == self.head.width, "estimator.teacher", name, fix)

    def check_probes(self, probes: Array, name: str) -> None:
        """Refuse another embedder; `probes` are the embeddings of PROBES by the one of now."""
        self.check_width(probes.shape[1], name)
        if self.probes is None:
            return
        size = np.linalg.norm(self.probes, axis=1)
        off = float(np.max(np.linalg.norm(probes - self.probes, axis=1) / np.maximum(size, 1e-12)))
        fix = (
            f"was trained on embeddings of {self.embedder!r}; this policy embeds the same texts "
            f"differently (by {off:.0%}): another model, chat template or system prompt. Train a "
            "head for it with `dare teacher fit`"
        )
        require(off < _TOLERANCE, "estimator.teacher", name, fix)


def save_head(saved: SavedHead, path: str | Path) -> None:
    """Write the file as a whole or not at all."""
    target = Path(path)
    arrays = saved.head.arrays()
    if saved.probes is not None:
        arrays["probes"] = np.ascontiguousarray(saved.probes, dtype=np.float32)
    meta = {
        "format": FORMAT,
        "embedder": saved.embedder,
        "width": str(saved.head.width),
        "tau": repr(saved.head.tau),
        "about": json.dumps(saved.about, allow_nan=False),
    }
    write_whole(target, save(arrays, metadata=meta))


def load_head(path: str | Path, name: str = "estimator.teacher") -> SavedHead:
    """Read what `save_head` wrote; `name` is the setting that an error is about."""
    if not os.path.isfile(path):
        raise InvalidInput(name, str(path), "there is no such file")
    try:
        with safe_open(str(path), framework="numpy") as file:
            meta: Mapping[str, str] = file.metadata() or {}
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        fix = f"is no head written by `dare teacher fit` ({error})"
        raise InvalidInput(name, str(path), fix) from None
    fix = f"is no head of the format {FORMAT}; write one with `dare teacher fit`"
    require(meta.get("format") == FORMAT, name, str(path), fix)
    probes = arrays.pop("probes", None)
    try:
        head = TeacherHead.of(arrays, float(meta["tau"]))
        about = json.loads(meta["about"])
    except (KeyError, ValueError) as error:
        raise InvalidInput(name, str(path), f"is damaged: {error}") from None
    return SavedHead(head, meta["embedder"], probes, about)
