"""How much memory has a card? By name, by size, or the one that is here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dare.errors import InvalidInput, suggest

_GIB = 2**30

CARDS = {
    "B200 180GB": 178.0,
    "H200 141GB": 139.5,
    "MI300X 192GB": 191.5,
    "H100 80GB": 79.0,
    "A100 80GB": 79.0,
    "A100 40GB": 39.0,
    "L40S 48GB": 44.0,
    "RTX A6000 48GB": 47.0,
    "RTX 5090 32GB": 31.0,
    "V100 32GB": 31.5,
    "V100 16GB": 15.5,
    "RTX 4090 24GB": 23.5,
    "RTX 3090 24GB": 23.5,
    "A10 24GB": 22.0,
    "L4 24GB": 22.0,
    "T4 16GB": 14.5,
}
"""GiB that the driver reports, rounded down: less than the name says where memory corrects itself.
"""

_WITHOUT_BF16 = ("V100", "T4")


@dataclass(frozen=True)
class Card:
    """A GPU and its bytes."""

    name: str
    bytes: float
    bf16: bool = True
    """Whether it computes in bfloat16, which is then the default."""


def card_named(text: str) -> Card:
    """A card by name ("H100 80GB", "rtx4090") or by plain size ("24GB")."""
    asked = _plain(text)
    several = [name for name in CARDS if asked in (_plain(name), _plain(_model(name)))]
    if len(several) > 1:
        raise InvalidInput("--gpu", text, f"comes in sizes: say {' or '.join(several)}")
    if several:
        name = several[0]
        return Card(name, CARDS[name] * _GIB, not name.startswith(_WITHOUT_BF16))
    size = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:GB|G|GiB)?\s*", text, re.IGNORECASE)
    if size is None:
        near = suggest(text.upper(), sorted(set(map(_model, CARDS))))
        raise InvalidInput("--gpu", text, f"give a size, as in 24GB, or a card's name; {near}")
    if float(size[1]) <= 0:
        raise InvalidInput("--gpu", text, "a size must be positive, as in 24GB")
    return Card(f"{size[1]} GB", float(size[1]) * 1e9)


def card_here() -> Card | None:
    """The first GPU of this machine."""
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    able = torch.cuda.is_bf16_supported(including_emulation=False)
    return Card(str(found.name), float(found.total_memory), able)


def _model(name: str) -> str:
    """A card's name without its size."""
    return name.rsplit(" ", 1)[0]


def _plain(name: str) -> str:
    """Without maker, line, case, spaces and the unit."""
    words = re.sub(r"nvidia|amd|geforce|tesla|instinct|gi?b\b", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", words).removeprefix("rtx")
