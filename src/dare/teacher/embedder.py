"""Embeddings to fit a head on: by a policy, by any other encoder, or given as an array."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.data.row import text_of
from dare.errors import InvalidInput, require
from dare.teacher.file import PROBES


@dataclass(frozen=True)
class Embedded:
    """One row a prompt, who made them, and those of PROBES where they can be made again."""

    rows_PH: Array
    embedder: str
    probes: Array | None


def embed(
    prompts: Sequence[Any],
    embedder: str,
    system_prompt: str | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Embedded:
    """Mean-pooled last hidden states of `pocket` or of a model by path or name, or a .npy file.

    A prompt is put to the model as in training, by its chat template; equal ones are read once.
    """
    if embedder.endswith(".npy"):
        return Embedded(_given(Path(embedder), len(prompts)), Path(embedder).name, None)
    from dare.policy.embed import embed_prompts
    from dare.templates import template_of
    from dare.templates.encode import encode

    model, tokenizer, name = _load(embedder)
    first: dict[str, int] = {}
    place_P = np.array([first.setdefault(text_of(prompt), len(first)) for prompt in prompts])
    unique: list[Any] = [None] * len(first)
    for place, prompt in zip(place_P.tolist(), prompts, strict=True):
        unique[place] = prompt
    most = int(getattr(model.config, "max_position_embeddings", None) or 2**31)
    tokenizer.model_max_length = 2**31  # or it would warn of what is cut off here
    template = template_of(system_prompt)
    texts = [encode(tokenizer, template.messages(prompt))[:most] for prompt in (*unique, *PROBES)]
    found = embed_prompts(model, texts, pad_id=tokenizer.pad_token_id or 0, progress=progress)
    count = len(unique)
    return Embedded(found[:count][place_P], name, found[count:])


def _load(name: str) -> tuple[Any, Any, str]:
    if name == "pocket":
        from dare import pocket

        return pocket.load_policy(), pocket.load_tokenizer(), name
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModel.from_pretrained(name).eval()
    except (OSError, ValueError) as error:
        fix = f"is neither `pocket`, a .npy file nor a model that loads ({str(error)[:200]})"
        raise InvalidInput("--embed", name, fix) from None
    return model, tokenizer, Path(name).name


def _given(path: Path, count: int) -> Array:
    if not os.path.isfile(path):
        raise InvalidInput("--embed", str(path), "there is no such file")
    try:
        rows = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InvalidInput("--embed", str(path), f"is no array ({error})") from None
    fix = f"must have {count} rows, one for each of the rates"
    require(rows.ndim == 2 and len(rows) == count, "--embed", rows.shape, fix)
    require(bool(np.isfinite(rows).all()), "--embed", str(path), "holds nan or inf")
    found: Array = rows.astype(np.float32)
    return found
