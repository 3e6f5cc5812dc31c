"""The difficulty of all prompts at one moment, as one small line of JSON."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array

BINS = 20
FOLLOWED = 65_536
"""Prompts whose tier is kept. Rows are in order of hashes: the first ones are a fair sample."""


def landscape_record(step: int, difficulty_P: Array, tier_P: Array) -> dict[str, Any]:
    """Prompts by difficulty, in bins of equal width, and the tier of each.

    Tiers take two bits each, compressed: 35,000 prompts are at most 12 kB a step.
    """
    place = np.minimum((difficulty_P * BINS).astype(np.int64), BINS - 1)
    followed = np.asarray(tier_P[:FOLLOWED], np.uint8)
    return {
        "step": step,
        "prompts": len(difficulty_P),
        "histogram": np.bincount(place, minlength=BINS).tolist(),
        "followed": len(followed),
        "tiers": _pack(followed),
    }


def tiers_of(record: Mapping[str, Any]) -> Array:
    """The tiers a record holds, in order of the rows; raises ValueError where it is damaged."""
    try:
        held = base64.b64decode(record["tiers"], validate=True)
        packed = zlib.decompressobj().decompress(held, FOLLOWED)
        followed = int(record["followed"])
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"tiers cannot be read ({type(error).__name__})") from None
    quarters = np.frombuffer(packed, np.uint8)
    tiers = np.stack([(quarters >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1).ravel()
    if not 0 <= len(tiers) - followed < 4:
        raise ValueError(f"{len(tiers)} tiers cannot be those of the prompts followed")
    return tiers[:followed]


def _pack(tier_P: Array) -> str:
    quarters = np.zeros((-(-len(tier_P) // 4), 4), np.uint8)
    quarters.ravel()[: len(tier_P)] = tier_P
    packed = quarters[:, 0] | quarters[:, 1] << 2 | quarters[:, 2] << 4 | quarters[:, 3] << 6
    return base64.b64encode(zlib.compress(packed.tobytes(), 6)).decode("ascii")
