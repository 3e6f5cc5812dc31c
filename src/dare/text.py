"""Text of strangers, made fit to be looked at."""

from __future__ import annotations

import re
from typing import Any

LONGEST = 6000
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb]"
)


def legible(text: str, longest: int = LONGEST) -> str:
    """Control characters, lone surrogates and marks that reorder text become visible signs.

    A terminal's escape shows as ␛, a right-to-left override as ⟨U+202E⟩. What is too long loses
    its middle.
    """
    if len(text) > longest:
        cut = len(text) - longest
        end = longest // 3
        text = f"{text[: longest - end]}\n[... {cut:,} characters left out ...]\n{text[-end:]}"
    return _UNSEEN.sub(_sign, text.replace("\r\n", "\n"))


def prompt_text(prompt: Any) -> str:
    """A prompt as it stands; of a conversation, every turn under its role."""
    if not isinstance(prompt, list):
        return str(prompt)
    turns = [turn if isinstance(turn, dict) else {"content": turn} for turn in prompt]
    return "\n\n".join(f"[{turn.get('role', '?')}]\n{turn.get('content', '')}" for turn in turns)


def _sign(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def natural(name: str) -> tuple[int, float, str]:
    """Sorts '10' after '9', and numbers before words."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name
