"""What a decoding step reads and writes: the slots, and what the rollouts have become."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slots:
    """One row a slot, all int32. A slot whose rollout has ended is not `alive` and idles."""

    token: Tensor
    """The token to read next."""
    prefix: Tensor
    """Prompt tokens in pages that the group shares; the last of these pages may be part full."""
    own: Tensor
    """Tokens read so far into pages of the slot's own: the place of `token` after the prefix."""
    row: Tensor
    """Which rollout this is."""
    written: Tensor
    """Tokens it has been given."""
    budget: Tensor
    """Tokens it may have."""
    alive: Tensor
    table: Tensor
    """[slots, pages] Its pages: those of the prefix, its own, then page 0, which is no one's."""

    @classmethod
    def empty(cls, count: int, pages: int, device: torch.device) -> Slots:
        """Slots without rollouts."""
        columns = {
            field.name: torch.zeros(count, dtype=torch.int32, device=device)
            for field in fields(cls)
            if field.name != "table"
        }
        table = torch.zeros(count, pages, dtype=torch.int32, device=device)
        return cls(**columns, table=table)

    def first(self, count: int) -> Slots:
        """The first slots, as views."""
        return Slots(**{field.name: getattr(self, field.name)[:count] for field in fields(self)})


@dataclass(frozen=True)
class Outputs:
    """Per rollout: its random numbers, the tokens drawn with them, and how it ended."""

    noise: Tensor
    """[rollouts, longest] Uniform numbers, one a token."""
    ends: Tensor
    """Tokens that end a response."""
    tokens: Tensor
    """[rollouts, longest]"""
    length: Tensor
    stopped: Tensor
    """1 where an end token was drawn."""
