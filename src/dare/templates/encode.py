"""From a conversation to the token ids that the policy reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dare.errors import InvalidInput, first_line, require
from dare.templates import Message

_OPTIONS = "chat_template_kwargs"
"""Attribute of a tokenizer with more arguments for its template (`enable_thinking`), so that
whoever encodes with it shows the policy the same."""
_OURS = {  # of `apply_chat_template` itself: what is done with the text
    *("conversation", "tokenize", "padding", "truncation", "max_length", "tokenizer_kwargs"),
    *("return_tensors", "return_dict", "return_assistant_tokens_mask"),
}


def give_options(tokenizer: Any, options: Mapping[str, Any] | None) -> None:
    """Have everybody who encodes with the tokenizer give its template these arguments."""
    for name, value in (options or {}).items():
        fix = "is no argument of a template, and set here; leave it out"
        require(isinstance(name, str) and name not in _OURS, f"{_OPTIONS}.{name}", value, fix)
    setattr(tokenizer, _OPTIONS, options)


def prompt_text(tokenizer: Any, messages: Sequence[Message]) -> str:
    """By the chat template; a base model without one reads the contents, one a line."""
    if not getattr(tokenizer, "chat_template", None):
        return "\n".join(turn["content"] for turn in messages) + "\n"
    try:
        return _by_template(tokenizer, messages)
    except Exception as error:
        # Some models' templates refuse a system message: its text then leads the first turn.
        if len(messages) > 1 and messages[0]["role"] == "system" and _refuses(error):
            first, second, *rest = messages
            joined = {**second, "content": f"{first['content']}\n\n{second['content']}"}
            return prompt_text(tokenizer, [joined, *rest])
        fix = f"cannot write a prompt ({type(error).__name__}: {first_line(error, 120)})"
        raise InvalidInput("chat_template", tokenizer.chat_template, fix) from error


def _refuses(error: Exception) -> bool:
    return "TemplateError" in type(error).__name__


def encode(tokenizer: Any, messages: Sequence[Message]) -> npt.NDArray[np.int64]:
    """Token ids up to where the response begins."""
    text = prompt_text(tokenizer, messages)
    # A chat template writes the special tokens itself; a base model gets them from its tokenizer.
    chat = bool(getattr(tokenizer, "chat_template", None))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] if chat else tokenizer(text)
    return np.asarray(ids if chat else ids["input_ids"], dtype=np.int64)


def _by_template(tokenizer: Any, messages: Sequence[Message]) -> str:
    options = {"add_generation_prompt": True, **(getattr(tokenizer, _OPTIONS, None) or {})}
    text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
    if not text.strip():
        raise ValueError("nothing is written")
    return text
