"""How much of a program does a text show? (METHOD 7, for prompts whose truth is tests)

The unit is the statement: a simple one whole, a compound one (`for`, `if`, ...) by its header.
Imports, signatures, docstrings and statements of no content (`pass`, a bare `return`) do not count,
nor does what the prompt shows already. A text shows a statement when it contains it, or the
expression it works out, whatever the spacing, brackets and quotes.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

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
