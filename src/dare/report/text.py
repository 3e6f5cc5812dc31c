"""Text of strangers, made fit to be looked at, and YAML of strangers, fit to be read."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

LONGEST = 6000
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb]"
)
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}


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


def embedded(value: Any) -> str:
    """JSON that stands safely inside a script element: pure ASCII without <, > and &."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def load_yaml(text: str) -> Any:
    """YAML as plain values; aliases that stand for far more than is written are a YAMLError."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > 10 * max(len(text), 100):
            raise yaml.YAMLError("its aliases stand for far more than is written")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """Values that a node stands for, written out; infinite for one that holds itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")
        held = node.value if isinstance(node, yaml.CollectionNode) else []
        inside = [one for pair in held for one in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_size(one, known) for one in inside)
    return known[id(node)]


def _sign(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"
