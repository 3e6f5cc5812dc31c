"""Reading what a program's process answers. It may be a forgery; that is no better than a lie."""

from __future__ import annotations

from typing import Any

from dare.rewards.code.answers import same
from dare.rewards.code.verdict import Ruling
from dare.rewards.code.wire import load

RETURNED, RAISED = b"=", b"!"


def raised(reply: bytes) -> tuple[Ruling, str]:
    """What an exception comes to."""
    try:
        names, said = load(reply[1:], inert=True)
        message = f"{names[0]}: {said}"
    except (ValueError, TypeError, LookupError):
        return Ruling.RUNTIME_ERROR, "not an answer"
    memory = message.startswith("MemoryError")
    return (Ruling.MEMORY_LIMIT if memory else Ruling.RUNTIME_ERROR), message


def compared(reply: bytes, expected: Any) -> tuple[Ruling, str]:
    """What an answer comes to, beside the expected one."""
    if reply[:1] == RAISED:
        return raised(reply)
    try:
        if reply[:1] == RETURNED and same(load(reply[1:], inert=True), expected):
            return Ruling.ACCEPTED, ""
    except (ValueError, RecursionError):
        return Ruling.WRONG_ANSWER, "not an answer"
    return Ruling.WRONG_ANSWER, f"answered {reply[1:200].decode('utf-8', 'replace')}"
