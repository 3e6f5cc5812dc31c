r"""Was the problem solved? The last complete \boxed{} decides, nothing else in the text does."""

import re

_BRACE = re.compile(r"\\boxed\{|[{}]")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def boxed(completion: str) -> str | None:
    r"""What stands in the last `\boxed{...}` that is closed, or None without one."""
    open_braces: list[tuple[int, bool]] = []  # where the content begins, and whether of a box
    last: tuple[int, int] | None = None
    for brace in _BRACE.finditer(completion):
        if brace[0] != "}":
            open_braces.append((brace.end(), len(brace[0]) > 1))
        elif open_braces:
            begin, of_box = open_braces.pop()
            if of_box and (last is None or begin > last[0]):
                last = (begin, brace.start())
    return None if last is None else completion[slice(*last)]


def reward(completion: str, answer: str | int) -> float:
    """1.0 when the box holds exactly the integer `answer`, otherwise 0.0.

    Blanks around the number and leading zeros do not matter; words, units or a second number do.
    """
    inside = boxed(completion)
    if inside is None or not _INTEGER.fullmatch(inside.strip()):
        return 0.0
    return float(int(inside) == int(answer))
