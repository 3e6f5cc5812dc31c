"""Hints where the truth is tests: what one past program did, without the program.

A hint is made of up to three lines. First come sentences and comments that say a step of the plan
in words. Where there are too few: the functions that the program calls, its control flow, and its
opening statements. All lines together show at most a third of the program's statements
(`ProgramGuard`), and nothing that the prompt says already.

The unit is the statement: a simple one whole, a compound one (`for`, `if`, ...) by its header.
Imports, signatures, docstrings and statements of no content (`pass`, a bare `return`) do not count,
nor does what the prompt shows already. A text shows a statement when it contains it, or the
expression it works out, whatever the spacing, brackets and quotes.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from dare_errors import require
from dare_hints.skeletons import MAX_CHARS, MIN_CHARS, split
from dare_verify.code import extract_program

SHARE = 1 / 3
"""Of a program's statements a hint shows at most this share."""
_MAX_PROGRAM = 20_000
_MIN_EXPRESSION = 8  # characters; `n - 1` is in every program
_EMPTY = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Pass, ast.Break, ast.Continue)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_HEADLESS = (*_FUNCTIONS, ast.ClassDef, ast.Try, ast.TryStar)
_NOISE = str.maketrans({'"': "'", **dict.fromkeys(" \t\r\n`;\\()")})


def squeezed(text: str) -> str:
    """`text` without blanks, code marks and round brackets, with one kind of quotes."""
    return text.translate(_NOISE)


def parsed(program: str) -> ast.Module | None:
    """The program's tree; None where it has none, or is too large to be looked at."""
    if len(program) > _MAX_PROGRAM:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # '\d' in a model's program is not our affair
            return ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@dataclass(frozen=True)
class Statement:
    """A statement as it reads on one line, and the forms under which a text may show it."""

    text: str
    forms: tuple[str, ...]


class ProgramGuard:
    """Counts the statements of one program that texts show, beyond those of its prompt."""

    def __init__(self, tree: ast.Module, prompt: str = "") -> None:
        known = squeezed(prompt)
        self.statements = _statements(tree, known)
        functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
        own = {item.text for node in functions for item in _statements(node, known)}
        # Calls and checks after a function must not let more of the function be shown.
        self.budget = int(SHARE * (len(own) or len(self.statements)) + 1e-9)

    def shown(self, text: str) -> list[Statement]:
        """The statements that `text` shows."""
        flat = squeezed(text)
        return [item for item in self.statements if any(form in flat for form in item.forms)]

    def allows(self, text: str) -> bool:
        """Whether a hint may say all of this."""
        return len(self.shown(text)) <= self.budget


def _statements(tree: ast.AST, known: str) -> list[Statement]:
    """The distinct statements that count, in the order of the program."""
    found: dict[str, Statement] = {}
    for node in _in_order(tree):
        if isinstance(node, (*_EMPTY, *_HEADLESS)) or _says_nothing(node):
            continue
        text = ast.unparse(node).partition("\n")[0]
        whole = squeezed(text).removesuffix(":")
        if whole not in known:
            found.setdefault(text, Statement(text, (whole, *_expression(node))))
    return list(found.values())


def _in_order(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        yield from _in_order(child)


def _says_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, (ast.Constant, ast.Name))  # a docstring, an ellipsis
    return isinstance(node, ast.Return) and node.value is None


def _expression(node: ast.stmt) -> Iterator[str]:
    """What the statement works out, where that alone tells enough."""
    for name in ("value", "test", "iter", "subject"):
        part = getattr(node, name, None)
        if isinstance(part, ast.expr) and not isinstance(part, (ast.Name, ast.Constant)):
            form = squeezed(ast.unparse(part))
            if len(form) >= _MIN_EXPRESSION:
                yield form


_MAX_PIECES = 120  # the first of a long text; bounds the work on hostile input
_MAX_QUOTE = 24  # characters; a longer piece of code in a sentence is code, not a name
_MAX_NAMES = 6
_MAX_FLOW = 14  # words of the control flow


def outline(solution: str, prompt: str = "", *, limit: int = 3) -> list[str]:
    """At most `limit` lines about the program that `solution` ends in; [] where there is none."""
    require(limit >= 1, "limit", limit, "ask for at least 1 fragment")
    prompt = _readable(prompt)
    program = extract_program(solution, bare=True)
    tree = None if program is None else parsed(program)
    if program is None or tree is None:
        return []
    try:
        guard = ProgramGuard(tree, prompt)
        made = [_tools(tree, prompt), _flow(tree), _opening(guard)]
    except RecursionError:  # a tree that can be read need not be shallow enough to be written
        return []
    if not guard.statements:
        return []
    prose = [] if program == solution else split(solution)  # which leaves fenced code out
    pieces = [*prose, *_comments(program)][:_MAX_PIECES]
    known = squeezed(prompt).lower()
    plan = [piece for piece in pieces if _is_step(piece) and squeezed(piece).lower() not in known]
    best = sorted(dict.fromkeys(plan), key=_score, reverse=True)
    chosen: list[str] = []
    for line in [*best, *filter(None, made)]:
        if len(chosen) < limit and guard.allows("\n".join([*chosen, line])):
            chosen.append(line)
    order = [*plan, *made]
    return sorted(chosen, key=order.index)


def _readable(prompt: str) -> str:
    """What a prompt says; one of messages is kept as the JSON of its turns."""
    try:
        return "\n".join(content for _, content in json.loads(prompt))
    except (ValueError, TypeError):
        return prompt


# --- what the response says -----------------------------------------------------------------------

_STEP = re.compile(
    r"\b(?:iterat\w*|loop\w*|travers\w*|go(?:es)? through|sort\w*|count\w*|check\w*|compar\w*"
    r"|track\w*|keep\w*|stor(?:e|es|ing)|initiali\w*|append\w*|add(?:s|ing)?|remov\w*|skip\w*"
    r"|convert\w*|split\w*|join\w*|revers\w*|recurs\w*|swap\w*|find\w*|calculat\w*|comput\w*"
    r"|updat\w*|us(?:e|es|ing)|divid\w*|multipl\w*|subtract\w*|sum\w*|maxim\w*|minim\w*|filter\w*"
    r"|dictionary|hash|set|stack|queue|heap|pointers?|prefix|suffix|window|base case|edge case"
    r"|binary search|dynamic programming|greedy|each|every|while|until|if|otherwise|then)\b",
    re.I,
)
_TALK = re.compile(
    r"\b(?:here(?:'s| is)|sure|certainly|i hope|let me|example usage|usage example|test cases?"
    r"|testing|expected|outputs?:|inputs?:|this (?:code|solution|program) (?:should|works)"
    r"|your code|driver code|todo)\b|>>>",
    re.I,
)  # fmt: skip
_QUOTED = re.compile(r"`([^`]*)`")


def _comments(program: str) -> Iterator[str]:
    """Comments that speak: not code that was switched off, not marks for tools."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(program).readline):
            if token.type == tokenize.COMMENT:
                text = " ".join(token.string.lstrip("#! ").split())
                if len(text) >= MIN_CHARS and not _is_code(text):
                    yield text.rstrip(":. ")
    except (tokenize.TokenError, SyntaxError):  # the tree was read, the end is odd
        return


def _is_code(text: str) -> bool:
    tree = parsed(text)
    return tree is not None and any(
        isinstance(node, (ast.Call, ast.Assign, ast.Compare, ast.BinOp, ast.Subscript))
        for node in ast.walk(tree)
    )


def _is_step(piece: str) -> bool:
    """Whether a sentence or comment says what is done, in words."""
    if not MIN_CHARS <= len(piece) <= MAX_CHARS or _TALK.search(piece):
        return False
    quotes = _QUOTED.findall(piece)
    words = re.findall(r"[A-Za-z]{2,}", _QUOTED.sub(" ", piece))
    wordy = len(words) >= 3 and all(len(quote) <= _MAX_QUOTE for quote in quotes)
    return wordy and bool(_STEP.search(piece)) and not _is_code(piece)


def _score(piece: str) -> float:
    steps = len({word.lower() for word in _STEP.findall(piece)})
    return min(steps, 4) + min(len(piece.split()), 12) / 4 - max(0, len(piece) - 160) / 40


# --- what the program is --------------------------------------------------------------------------

_COMMON = {
    "len", "range", "print", "int", "str", "isinstance", "input", "float", "list", "append",
    "type", "super", "map", "strip",
}  # fmt: skip
_FLOW: dict[type[ast.stmt], str] = {ast.For: "for", ast.While: "while", ast.If: "if"}


def _tools(tree: ast.Module, prompt: str) -> str:
    """Functions of its own and others that it calls, by name."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    own = {function.name for function in functions}
    helpers: dict[str, None] = {}
    for function in functions:
        if not re.search(rf"\b{re.escape(function.name)}\b", prompt) and len(own) > 1:
            arguments = ", ".join(argument.arg for argument in function.args.args)
            helpers[f"{function.name}({arguments})"] = None
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    modules = {alias.asname or alias.name for node in imports for alias in node.names}
    calls: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _called(node.func, modules)
            if name.rpartition(".")[2] not in _COMMON | own | {""}:
                calls[name] = None
    said = []
    if helpers:
        said.append(f"It has the functions {', '.join(list(helpers)[:_MAX_NAMES])}")
    if calls:
        said.append(f"It calls {', '.join(list(calls)[:_MAX_NAMES])}")
    if any(_calls_itself(function) for function in functions):
        said.append("It calls itself")
    return "; ".join(said)


def _called(function: ast.expr, modules: set[str]) -> str:
    """`name`, `module.name`, or `.name` for a method of whatever object."""
    if isinstance(function, ast.Name):
        return function.id
    if not isinstance(function, ast.Attribute):
        return ""
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    return f"{owner if owner in modules else ''}.{function.attr}"


def _calls_itself(function: ast.FunctionDef) -> bool:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(_called(call, set()).lstrip(".") == function.name for call in calls)


def _flow(tree: ast.Module) -> str:
    """Loops and branches of its longest function, as nested words."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    longest = max(functions, key=lambda f: len(list(ast.walk(f))), default=None)
    body = tree.body if longest is None else longest.body
    for depth in (4, 3, 2, 1):
        flow = _nested(body, depth)
        words = re.findall(r"\w+", flow)
        if len(words) <= _MAX_FLOW:
            told = {"for", "while", "if"} & set(words)
            return f"Its control flow is: {flow}" if told else ""
    return ""


def _nested(body: list[ast.stmt], depth: int) -> str:
    parts = []
    for node in body:
        if isinstance(node, ast.Return):
            parts.append("return")
        elif isinstance(node, ast.For | ast.While | ast.If):
            word = _FLOW[type(node)]
            inner = _nested(node.body, depth - 1) if depth > 1 else ""
            parts.append(f"{word} ({inner})" if inner else word)
            if node.orelse and depth > 1 and (other := _nested(node.orelse, depth - 1)):
                parts.append(f"else ({other})")
    return ", ".join(parts)


def _opening(guard: ProgramGuard) -> str:
    """Its first statements, as many as may be shown, three at the most."""
    first = [item.text for item in guard.statements if len(item.text) <= 80]
    shown: list[str] = []
    for text in first[: min(3, guard.budget)]:
        if guard.allows("\n".join([*shown, text])):
            shown.append(text)
    return f"It begins with {', then '.join(f'`{text}`' for text in shown)}" if shown else ""
