"""Whether a saved curriculum fits, and what of it is kept with other prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dare.config import CurriculumConfig
from dare.config.reads import idle
from dare.curriculum.arrays import Array
from dare.errors import InvalidInput, require

FORMAT = 8
_BY_PROMPT = ("prompts/", "estimator/")
_NOT_BY_PROMPT = ("estimator/memory_", "estimator/map_")


def fitting(
    state: Mapping[str, Any], own: Mapping[str, Any], *, new_data: bool
) -> dict[str, Array]:
    """The arrays of a state that a curriculum with the state `own` can take; others are refused."""
    meta, arrays = state["meta"], dict(state["arrays"])
    require(meta["format"] == FORMAT, "format", meta["format"], f"this version reads {FORMAT}")
    changed = _differences(meta["config"], own["meta"]["config"])
    for name in idle(CurriculumConfig.from_dict(own["meta"]["config"])):
        changed.pop(name, None)  # nobody reads it
    if changed:
        name, (then, now) = next(iter(changed.items()))
        fix = f"the state was saved with {then!r}; resume with the same settings"
        raise InvalidInput(name, now, fix)
    keys = own["arrays"]["prompts/key"]
    if np.array_equal(arrays["prompts/key"], keys):
        return arrays
    if not new_data:
        fix = (
            f"the state was saved for {len(arrays['prompts/key'])} other prompts; resume with "
            "the same data, or begin in another folder (Curriculum.load_state_dict takes "
            "new_data=True and keeps what is known by id)"
        )
        raise InvalidInput("prompts", len(keys), fix)
    return _move(arrays, own["arrays"])


def _differences(then: Any, now: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Settings that changed, by dotted name."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        found: dict[str, tuple[Any, Any]] = {}
        for name in sorted({*then, *now}):
            inner = f"{path}.{name}" if path else name
            found.update(_differences(then.get(name), now.get(name), inner))
        return found
    return {} if then == now else {path: (then, now)}


def _move(arrays: dict[str, Array], fresh: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of another prompt table, rearranged for the one that `fresh` is of.

    Prompts that are new here start as unseen; those that are gone take their rollouts with them.
    """
    old, keys = arrays["prompts/key"], fresh["prompts/key"]
    place = np.minimum(np.searchsorted(keys, old), len(keys) - 1)
    kept = keys[place] == old
    moved = dict(arrays)
    for name, array in arrays.items():
        by_prompt = name.startswith(_BY_PROMPT) and not name.startswith(_NOT_BY_PROMPT)
        if by_prompt and len(array) == len(old):
            first = fresh[name]  # what is read has a width of its own
            target = np.zeros((len(keys), *array.shape[1:]), first.dtype)
            if first.shape == target.shape:
                target[:] = first
            target[place[kept]] = array[kept]
            moved[name] = target
    moved["prompts/key"] = keys
    held = kept[arrays["buffer/prompt"]]
    tokens = np.repeat(held, arrays["buffer/length"])
    for name in [name for name in arrays if name.startswith("buffer/")]:
        flat = name in ("buffer/tokens", "buffer/logprobs")
        moved[name] = arrays[name][tokens if flat else held]
    moved["buffer/prompt"] = place[moved["buffer/prompt"]]
    for table in ("cold/", "estimator/memory_"):
        owner = arrays.get(f"{table}prompt")
        if owner is not None:
            here = kept[owner.astype(np.int64)]
            for name in [name for name in arrays if name.startswith(table)]:
                moved[name] = arrays[name][here]
            moved[f"{table}prompt"] = place[moved[f"{table}prompt"].astype(np.int64)]
    return moved
