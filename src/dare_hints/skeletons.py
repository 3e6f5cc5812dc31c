"""Hints for hard prompts: the skeleton of one past success, with the answer kept out.

A success is split into sentences and displayed equations, each is scored by how much reasoning it
carries, and the best few are returned in their original order. No fragment shows the answer: one
that would is cut back to the last complete statement before it, or dropped (`AnswerGuard`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dare_errors import require
from dare_hints.answer_guard import AnswerGuard

MIN_CHARS = 14
MAX_CHARS = 280
_FILLER = 2.5  # plain words that score less are talk: better than nothing, not worth adding
_MAX_PIECES = 120  # the best of a long text; bounds the work on hostile input


def skeleton(solution: str, answer: str, *, limit: int = 3) -> list[str]:
    """At most `limit` fragments of `solution`, in order, none of which shows `answer`."""
    for name, text in (("solution", solution), ("answer", answer)):
        readable = isinstance(text, str) and text.strip()
        require(readable, name, text, "pass a non-empty string, or skip this prompt")
    require(limit >= 1, "limit", limit, "ask for at least 1 fragment")
    guard = AnswerGuard([answer, *_stated_answers(solution)])
    pieces = sorted(enumerate(split(solution)), key=lambda item: -_score(item[1]))
    found: dict[str, tuple[float, int]] = {}
    for place, piece in pieces[:_MAX_PIECES]:
        if text := _silenced(piece, guard.first_leak):
            found.setdefault(text, (_score(text) - (text != piece), place))
        if len(found) == 4 * limit:  # later pieces score less even before they are cut
            break
    chosen: dict[int, str] = {}
    shown: frozenset[int] = frozenset()
    for text, (score, place) in sorted(found.items(), key=lambda item: (-item[1][0], item[1][1])):
        filler = chosen and score < _FILLER and not _EQUATION.search(text)
        entries = shown | guard.shown_entries(text)
        # Fragments that are innocent one by one may spell a tuple out together.
        together = guard.entries and len(entries) == len(guard.entries)
        if not filler and not together and len(chosen) < limit:
            chosen[place], shown = text, entries
    return [chosen[place] for place in sorted(chosen)]


def _silenced(text: str, leak: Callable[[str], int | None]) -> str:
    """`text` cut back until nothing leaks and it is short; '' when nothing usable is left."""
    for cuts in range(5):
        boxed = _BOXED.search(text)
        ends = (leak(text), boxed and boxed.start(), MAX_CHARS if len(text) > MAX_CHARS else None)
        places = [end for end in ends if end is not None]
        if not places:
            return text if _usable(text, cut=cuts > 0) else ""
        text = _cut(text, min(places))
    return ""


def _stated_answers(solution: str) -> list[str]:
    """The answers the solution itself states: the gold one may be written in another way."""
    stated = [solution.rstrip().rpartition("\n")[2].partition("####")[2]]
    stated += [tail.partition("</answer>")[0] for tail in solution.split("<answer>")[1:]][-1:]
    for match in list(_BOXED.finditer(solution))[-4:]:
        depth, inside = 0, solution[match.end() : match.end() + 400]
        for i, char in enumerate(inside):
            depth += (char == "{") - (char == "}")
            if depth == 0:
                stated.append(inside[:i].lstrip("{"))
                break
    return stated


_BOXED = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])\s?")
_EQUATION = re.compile(
    r"[=<>^\u2248\u2264\u2265]|\\(?:leq?|geq?|approx|equiv|neq?|d?frac|sqrt|d?binom|sum|mid)(?![a-z])"
    r"|\d\s*(?:[-+*/x\u00d7\u00f7]|\\cdot|\\times|\\div)\s*[$\\(]*\s*[\da-z]"
)
_CONNECTIVE = re.compile(
    r"\b(?:because|so|therefore|thus|hence|since|then|implies|means|let|if|when|substitut\w*|"
    r"factor\w*|multiply\w*|divid\w*|add\w*|subtract\w*|each|by|total)\b",
    re.I,
)
_PREAMBLE = re.compile(
    r"\b(?:we (?:need|want|are asked|have) to|let's|step by step|to (?:find|solve|"
    r"determine)|final answer|(?:the|our) answer|check)\b",
    re.I,
)


def _score(text: str) -> float:
    """How much reasoning a fragment carries."""
    equations = min(len(re.findall(r"[=<>\u2248\u2264\u2265]|\\(?:leq?|geq?|equiv)\b", text)), 3)
    steps = min(len(_EQUATION.findall(text)), 4)
    words = len(re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", text))
    links = min(len(set(map(str.lower, _CONNECTIVE.findall(text)))), 2)
    numerals = min(len(set(re.findall(r"\d+", text))), 4)
    value = 2.0 * equations + 0.5 * steps + links + 0.5 * numerals + min(words, 6) / 3
    return value - 2.0 * bool(_PREAMBLE.search(text)) - max(0, len(text) - 180) / 40


def _usable(text: str, *, cut: bool) -> bool:
    """Long enough, balanced, and saying something; what was cut must still hold a step."""
    if len(text) < MIN_CHARS or not _walk(text)[1]:
        return False
    words = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{2,}", text)
    return bool(_EQUATION.search(text)) or (len(words) >= 5 and not cut)


# --- splitting ------------------------------------------------------------------------------------

_MARKUP = re.compile(
    r"<<[^<>]{0,200}>>|</?think>|^[ \t]*#[^\n]*|####[^\n]*|\*\*"
    r"|^[ \t]*(?:[-*+\u2022]|\(?\d{1,2}[.)]|Step \d{1,2}\s?[:.])[ \t]+",
    re.M,
)
_DOLLAR = re.compile(r"(?<!\\)\$")
_PRICE = re.compile(r"(?<![\w.,)}\\$])\$(?=\s?\.?\d)")
_BREAK = re.compile(
    r"\\\\|\\\$|\$\$|\$|\\[()\[\]]|\\(?:begin|end)\{[^{}\n]{0,30}\}|\n\s*|[.!?][\"')]*(?=\s|$)"
)
_CLOSER = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|vs|etc|approx|[Ee]q|[A-Z])|\.[a-z])$")


def split(solution: str) -> list[str]:
    """Sentences, lines and displayed equations of a solution, without mark-up or final answer."""
    text = solution.replace("\r\n", "\n").partition("<answer>")[0]
    head, *drawings = text.split("[asy]")
    text = head + "".join(part.partition("[/asy]")[2] for part in drawings)
    text = _MARKUP.sub("", "".join(text.split("```")[::2]))
    pieces: list[str] = []
    for piece in _pieces(text, displays=False):
        pieces += [piece] if len(piece) <= MAX_CHARS else _pieces(piece, displays=True)
    pieces = [" ".join(p[: 2 * MAX_CHARS].split()) for p in pieces if len(p) >= MIN_CHARS]
    tidy = (piece.rstrip(",; ") for piece in pieces)
    # 'Thus the number of ways is:' announces a step without taking it.
    return [p.rstrip(": ") for p in tidy if not p.endswith(":") or _EQUATION.search(p)]


def _pieces(text: str, *, displays: bool) -> Iterator[str]:
    """Cut at sentence ends and lines outside mathematics; at displayed equations if asked."""
    money = _money(text)
    mode, start = "", 0
    for match in _BREAK.finditer(text):
        token, end = match[0], match.end()
        following = text[end : end + 40].lstrip()[:2]
        new = not following or following[0].isupper() or following[0].isdigit()
        blank = token.count("\n") > 1
        if mode:
            if token != mode and not blank:
                continue
            whole = blank or (len(mode) > 1 and mode != r"\)" and (displays or new))
            whole = whole or (len(mode) > 1 and following in ("$$", r"\["))
            whole = whole or (new and text[match.start() - 1] in ".!?")
            mode = ""
        elif token in _CLOSER or token.startswith(r"\begin"):
            if token == "$" and money:
                continue
            mode = _CLOSER.get(token) or token.replace("begin", "end", 1)
            end = match.start()
            whole = displays and token not in ("$", r"\(")
        elif token[0] == "\n":
            whole = blank or new or text[match.start() - 1] in ".!?" or following[0] in "-*\u2022"
            whole = whole and following not in ("$$", r"\[")
        else:
            before = text[max(0, match.start() - 8) : match.start()]
            whole = token[0] in ".!?" and not following[:1].islower()
            whole = whole and not _ABBREVIATION.search(before)
        if whole:
            yield text[start:end]
            start = end
    yield text[start:]


def _money(text: str) -> bool:
    """Whether the dollar signs of a text are prices rather than mathematics."""
    signs = len(_DOLLAR.findall(text))
    return 3 * (signs - len(_PRICE.findall(text))) < signs


# --- cutting --------------------------------------------------------------------------------------

_STRUCTURE = re.compile(
    r"\\(?:left|right)\s?(?:\\[{}|]|\\[A-Za-z]+|[^\\{}])|\\(?:begin|end)\{[^{}\n]{0,30}\}"
    r"|\$\$|\\[A-Za-z]+|\\.|[A-Za-z]+|[${}()\[\]=<>\u2248\u2264\u2265\u21d2\u2192,;:]",
    re.S,
)
_OPENING = {"{": "}", "(": ")", "[": ")", r"\{": ")"}  # [1, 2) is balanced
_CLOSING = {"}": "}", ")": ")", "]": ")", r"\}": ")"}
_RELATIONS = {
    "=", "<", ">", "\u2248", "\u2264", "\u2265", r"\le", r"\leq", r"\ge", r"\geq", r"\approx",
    r"\equiv", r"\in",
}  # fmt: skip
_CLAUSES = {
    ",", ";", ":", "\u21d2", "\u2192", r"\\", r"\quad", r"\qquad", r"\implies", r"\Rightarrow",
    r"\iff", r"\to", r"\rightarrow", r"\Longrightarrow", r"\text",
}  # fmt: skip
_RELATION_WORD = re.compile("is|are|was|were|equals|gives|yields|makes|means|leaves", re.I)
_CLAUSE_WORD = re.compile("so|then|thus|hence|therefore|which|and|but|because|since|where", re.I)
_DANGLING_SIGN = re.compile(
    r"(?:[\s,;:=&+*/<>(\[~^_\u2248\u2264\u2265\u21d2\u2192-]|\\[,;:! ]|\\\\"
    r"|\\(?:implies|Rightarrow|cdot|times|quad|qquad|text|approx|equiv|leq?|geq?|in|to|iff))$"
)
_DANGLING_WORD = re.compile(
    r"(?:^|(?<=\s))(?:is|are|was|so|and|or|the|of|an?|to|which|that|then|for|we|get|have|has|by"
    r"|with|than|as|in|be|thus|hence|therefore|since|because|if|when|where|gives?|find|obtain"
    r"|equals?|also|from|at|must|she|he|it|they|total|there|this|means|answer|our)$",
    re.I,
)


@dataclass(frozen=True)
class _Edge:
    at: int
    relation: bool
    closers: tuple[str, ...]  # delimiters still open here, innermost first


def _walk(text: str) -> tuple[list[_Edge], bool]:
    """Places outside every bracket where a statement may end, and whether all is balanced."""
    money = _money(text)
    stack: list[str] = []
    tight, sound, edges = 0, True, list[_Edge]()
    for match in _STRUCTURE.finditer(text):
        token = match[0]
        if token in _OPENING or (token.startswith(r"\left") and len(token) > 5):
            stack.append(_OPENING.get(token, r"\right"))
            tight += 1
        elif token in _CLOSING or (token.startswith(r"\right") and len(token) > 6):
            if stack and stack[-1] == _CLOSING.get(token, r"\right"):
                stack.pop()
                tight -= 1
            else:
                sound = False
        elif stack and token == stack[-1]:
            stack.pop()
        elif token in _CLOSER or token.startswith(r"\begin"):
            if not (token == "$" and money):
                stack.append(_CLOSER.get(token) or token.replace("begin", "end", 1))
        elif token in (r"\)", r"\]") or token.startswith(r"\end"):
            sound = False
        elif not tight:
            prose = not stack
            relation = token in _RELATIONS or (prose and _RELATION_WORD.fullmatch(token))
            clause = token in _CLAUSES or (prose and _CLAUSE_WORD.fullmatch(token))
            if relation or (clause and not text[match.end() : match.end() + 1].isdigit()):
                edges.append(_Edge(match.start(), bool(relation), tuple(reversed(stack))))
    return edges, sound and not stack


def _cut(text: str, place: int) -> str:
    """The longest usable beginning of `text` that ends at an edge before `place`, or ''."""
    edges = [edge for edge in _walk(text)[0] if edge.at <= place]
    for i in range(len(edges) - 1, max(-1, len(edges) - 16), -1):
        edge = edges[i]
        since = max((e.at for e in edges[:i] if not e.relation), default=0)
        if edge.relation and not _EQUATION.search(text[since : edge.at]):
            continue  # 'so x' without its '= 5' says nothing
        kept = _closed(text[: edge.at], list(edge.closers))
        if _usable(kept, cut=True):
            return kept
    return ""


def _closed(text: str, closers: list[str]) -> str:
    """`text` without dangling words or operators, its open delimiters closed."""
    openers = {v: k for k, v in _CLOSER.items()}
    while True:
        shorter = text
        match = _DANGLING_SIGN.search(text[-16:])
        if not match and not closers:  # in mathematics `a` is a variable
            match = _DANGLING_WORD.search(text[-16:])
        if match:
            shorter = text[: len(text) - len(match[0])]
        elif closers:
            opener = openers.get(closers[0]) or closers[0].replace("end", "begin", 1)
            if text.endswith(opener):
                shorter, closers = text[: -len(opener)], closers[1:]
        if shorter == text:
            return text + "".join(closers)
        text = shorter
