r"""Which part of a completion is the answer: the last `\boxed{...}`, or what follows `####`."""

from __future__ import annotations

import math
import re
from numbers import Number

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
_CUT_OFF = re.compile(r"\\(?:bo?x?e?|fb?o?)\Z")  # the text ends inside the command of another box
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MARK = re.compile(r"####+")


def boxed_answer(text: str) -> str | None:
    r"""The content of the last box; None where it is absent, empty or never closed.

    Braces are counted as TeX does, where `\{` neither opens nor closes anything, and the time is in
    proportion to the box alone.
    """
    if _CUT_OFF.search(text, max(0, len(text) - 8)):
        return None
    boxes = list(_BOX.finditer(text, max(0, text.rfind("\\boxed"), text.rfind("\\fbox"))))
    if not boxes:
        return None
    start = boxes[-1].end()
    while start < len(text) and text[start].isspace():
        start += 1
    if not text.startswith("{", start):
        return None
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[start + 1 : brace.start()].strip() or None
    return None


def marked_answer(text: str) -> str | None:
    """The rest of the line after the last `####`; None where there is none."""
    marks = list(_MARK.finditer(text))
    if not marks:
        return None
    line = text[marks[-1].end() :].strip().partition("\n")[0]
    return line.strip() or None


def final_answer(completion: str) -> str | None:
    r"""The answer a completion commits to: its last `\boxed{}`; without any, the last `####`."""
    return boxed_answer(completion) if _BOX.search(completion) else marked_answer(completion)


def gold_answer(gold: object) -> str | None:
    r"""The reference as text; None where there is none to compare with.

    A worked solution is taken too: its last `\boxed{}`, or what follows its `####`.
    """
    if isinstance(gold, bool) or gold is None:
        return None
    if isinstance(gold, float) and not math.isfinite(gold):
        return None
    if not isinstance(gold, str | Number):
        return None
    text = _digits(gold) if isinstance(gold, int) else str(gold).strip()
    if _BOX.search(text) or _MARK.search(text):
        return final_answer(text)
    return text or None


def _digits(number: int) -> str:
    """Decimal text of an integer of any length: `str` refuses beyond 4300 digits."""
    if abs(number) < 10**4000:
        return str(number)
    chunks, rest = [], abs(number)
    while rest:
        rest, low = divmod(rest, 10**4000)
        chunks.append(str(low).zfill(4000))
    return ("-" if number < 0 else "") + "".join(reversed(chunks)).lstrip("0")
