"""Finding the program in what a model wrote."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`{]*)[^\n`]*$")
_PYTHON = re.compile(r"py(thon)?[0-9.]*", re.IGNORECASE)


def extract_program(completion: str, *, bare: bool = False) -> str | None:
    """The last fenced block of Python; where no block says it is Python, the last unnamed one.

    None where there is none, and where the last one was never closed: a response that was cut off
    inside its program has no program, whatever it wrote before. With `bare`, a completion that has
    no fence at all is itself the program, as base models write it.
    """
    lines = completion.replace("\r\n", "\n").split("\n")
    last: dict[bool, str | None] = {}
    place = 0
    while place < len(lines):
        opened = _FENCE.match(lines[place])
        place += 1
        if not opened:
            continue
        indent, fence, name = opened.groups()
        end = next((n for n in range(place, len(lines)) if _closes(lines[n], fence)), None)
        body = lines[place : len(lines) if end is None else end]
        if not name or _PYTHON.fullmatch(name):
            text = "\n".join(line.removeprefix(indent) for line in body) + "\n"
            last[bool(name)] = text if end is not None else None
        place = len(lines) if end is None else end + 1
    if last:
        found = last[True] if True in last else last[False]
        return found if found and found.strip() else None
    fenced = any(_FENCE.match(line) for line in lines)
    return completion if bare and not fenced and completion.strip() else None


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and set(mark) == {fence[0]}
