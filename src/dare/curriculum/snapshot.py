"""The curriculum as arrays and JSON, and back (no pickle)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput, require

if TYPE_CHECKING:
    from dare.curriculum.curriculum import Curriculum

FORMAT = 8
_BY_PROMPT = ("prompts/", "estimator/")
_NOT_BY_PROMPT = ("estimator/memory_", "estimator/map_")


def snapshot(curriculum: Curriculum) -> dict[str, Any]:
    """{'arrays': name -> array, 'meta': JSON-able}."""
    buffer, estimator = curriculum.buffer.state_dict(), curriculum.estimator.state_dict()
    arrays = {
        "prompts/key": curriculum.prompts.key_P,
        "prompts/visits": curriculum.visits_P.copy(),
        "prompts/last_step": curriculum.last_step_P.copy(),
        **{f"buffer/{name}": array for name, array in buffer["arrays"].items()},
        **{f"estimator/{name}": array.copy() for name, array in estimator["arrays"].items()},
    }
    cold = curriculum.cold_start
    arrays.update({f"cold/{name}": array.copy() for name, array in cold.arrays.items()})
    meta = {
        "format": FORMAT,
        "step": curriculum.step,
        "cold": not cold.finished,
        "references": cold.planned,
        "probes": curriculum._probes,
        "config": curriculum.config.to_dict(),
        "buffer": buffer["next"],
        "estimator": estimator["scalars"],
        "metrics": curriculum.metrics(),
    }
    return {"arrays": arrays, "meta": meta}


def restore(curriculum: Curriculum, state: Mapping[str, Any], *, new_data: bool) -> None:
    """Put a snapshot back. Everything is checked, and built, before anything is replaced."""
    meta, arrays = state["meta"], dict(state["arrays"])
    require(meta["format"] == FORMAT, "format", meta["format"], f"this version reads {FORMAT}")
    changed = _differences(meta["config"], curriculum.config.to_dict())
    if changed:
        name, (then, now) = next(iter(changed.items()))
        fix = f"the state was saved with {then!r}; resume with the same settings"
        raise InvalidInput(name, now, fix)
    keys = curriculum.prompts.key_P
    if not np.array_equal(arrays["prompts/key"], keys):
        if not new_data:
            fix = (
                f"the state was saved for {len(arrays['prompts/key'])} other prompts; resume with "
                "the same data, or pass new_data=True to keep what is known by id"
            )
            raise InvalidInput("prompts", len(keys), fix)
        arrays = _move(arrays, keys, curriculum)
    before = snapshot(curriculum)
    try:
        _apply(curriculum, arrays, meta)
    except (InvalidInput, KeyError, ValueError):
        _apply(curriculum, before["arrays"], before["meta"])
        raise


def _apply(curriculum: Curriculum, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
    def part(prefix: str) -> dict[str, Array]:
        return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}

    curriculum.buffer.load_state_dict({"arrays": part("buffer/"), "next": meta["buffer"]})
    scalars = {"arrays": part("estimator/"), "scalars": meta["estimator"]}
    curriculum.estimator.load_state_dict(scalars)
    planned, finished = int(meta["references"]), not meta["cold"]
    curriculum.cold_start.load(part("cold/"), planned, finished=finished)
    curriculum.visits_P = np.array(arrays["prompts/visits"], np.int64)
    curriculum.last_step_P = np.array(arrays["prompts/last_step"], np.int64)
    curriculum.step = int(meta["step"])
    curriculum._probes = int(meta["probes"])
    curriculum._metrics = dict(meta["metrics"])


def _differences(then: Any, now: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Settings that changed, by dotted name."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        found: dict[str, tuple[Any, Any]] = {}
        for name in sorted({*then, *now}):
            inner = f"{path}.{name}" if path else name
            found.update(_differences(then.get(name), now.get(name), inner))
        return found
    return {} if then == now else {path: (then, now)}


def _move(arrays: dict[str, Array], keys: Array, curriculum: Curriculum) -> dict[str, Array]:
    """The arrays of another prompt table, rearranged for this one.

    Prompts that are new here start as unseen; those that are gone take their rollouts with them.
    """
    old = arrays["prompts/key"]
    place = np.minimum(np.searchsorted(keys, old), len(keys) - 1)
    kept = keys[place] == old
    fresh = snapshot(curriculum)["arrays"]
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
