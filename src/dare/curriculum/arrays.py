"""Small array helpers shared by the curriculum."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dare.errors import InvalidInput

Array = NDArray[Any]


def to_numpy(values: Any, dtype: DTypeLike, field: str) -> Array:
    """NumPy array from lists, arrays or torch tensors (any device, also bfloat16), without torch.

    Integers come from floats only when nothing is lost: token ids of 3.7 are a bug upstream.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) in ("torch.bfloat16", "torch.float16"):
            values = values.float()
        values = values.numpy()
    try:
        array = np.asarray(values)
        converted = array.astype(dtype, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(field, values, f"must be convertible to {np.dtype(dtype)}") from error
    lossy = np.issubdtype(converted.dtype, np.integer) and converted.dtype != array.dtype
    if lossy and not np.array_equal(converted, array):
        raise InvalidInput(field, values, f"must be whole numbers that fit {np.dtype(dtype)}")
    return converted


def keyed_rng(seed: int, step: int, purpose: str) -> np.random.Generator:
    """Generator of one draw, keyed by (seed, step, purpose).

    No running generator exists, so a resumed run and any number of processes draw the same.
    """
    return np.random.Generator(np.random.PCG64([seed, step, zlib.crc32(purpose.encode())]))


def offsets_of(lengths: Array) -> Array:
    """Start of each ragged row, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def ragged_positions(starts: Array, lengths: Array) -> Array:
    """Flat positions of many ragged rows, row after row, without a Python loop."""
    total = int(lengths.sum())
    row_start = np.repeat(starts - offsets_of(lengths)[:-1], lengths)
    return row_start + np.arange(total, dtype=np.int64)


def compact(keys: Array) -> tuple[Array, Array]:
    """Distinct keys (sorted) and, per element, the index of its key among them."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    return distinct, inverse.reshape(-1)


def rank_from_end(keys: Array) -> Array:
    """For each element, how many later elements carry the same key (0 = the newest)."""
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    last = np.flatnonzero(np.append(sorted_keys[1:] != sorted_keys[:-1], True))
    end = np.repeat(last, np.diff(np.concatenate([[-1], last])))
    rank = np.empty(len(keys), dtype=np.int64)
    rank[order] = end - np.arange(len(keys))
    return rank
