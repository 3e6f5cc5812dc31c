"""Hints: lines of one past success that give neither the answer nor the program away."""

from __future__ import annotations

from dare_hints.programs import outline
from dare_hints.skeletons import skeleton

__all__ = ["hint", "outline", "skeleton"]


def hint(text: str, answer: str | None, prompt: str) -> list[str]:
    """Up to three lines of a success; without an answer its truth is tests, and it is a program.

    The curriculum's service of this name.
    """
    return skeleton(text, answer) if answer else outline(text, prompt)
