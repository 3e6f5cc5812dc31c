"""Options that several commands share, and what they do with them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from dare.errors import InvalidInput, require
from dare.text import legible

Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Columns = Annotated[
    str | None, typer.Option(help="Columns by field, as in prompt=question,answer=gold.")
]
Recipe = Annotated[str, typer.Argument(help="A shipped recipe or a YAML file.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run the code that the recipe names; read it first.")
]
OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}
"""For commands that take any setting of a recipe."""


def filled(text: str | None) -> str | None:
    """The value of --out, which an empty variable of a script leaves without a word."""
    require(text != "", "--out", text, "is empty; name a place, or leave the option out")
    return text


def quiet() -> None:
    """No bars of transformers between our own."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def listed(text: str) -> list[str]:
    """The words of a list with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def steps_of(option: str, text: str, example: str) -> list[int]:
    """Steps by number, each once and in order."""
    try:
        return sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise InvalidInput(option, text, f"name steps by comma, as in {example}") from None


def changed_recipe(
    context: typer.Context, recipe: str, *first: str, trust: bool, trains: bool = True
) -> dict[str, Any]:
    """The recipe with the settings that stand among the command's own options, after `first`; see
    `trusted_recipe`."""
    from dare.training.recipe import change

    name, options = split_options([recipe, *context.args])
    return change(trusted_recipe(name, trust=trust, trains=trains), [*first, *options])


def trusted_recipe(name: str, *, trust: bool, trains: bool = True) -> dict[str, Any]:
    """The recipe as it is written, once its code may be run. Nothing in a folder can prove that it
    was not a stranger's. A command that never `trains` runs an own estimator's module alone."""
    from dare.training.recipe import load_recipe, own_code, own_estimators

    recipe = load_recipe(name)
    if not trust:
        ask_for_trust(name, own_code(recipe) if trains else own_estimators(recipe))
    return recipe


def ask_for_trust(name: str, code: Sequence[str]) -> None:
    """Before a file's own code is imported; what the command line names is the user's word."""
    named = ", ".join(code)
    if named and not (
        sys.stdin.isatty() and typer.confirm(f"{legible(name)} runs {legible(named)}. Go on?")
    ):
        fix = f"names code that this command would run ({named}): read it, then add --trust"
        raise InvalidInput("recipe", name, fix)


def split_options(words: list[str], default: str = "quickstart") -> tuple[str, list[str]]:
    """The recipe and the `--name value` options among the words, in whichever order they came."""
    recipe: str | None = None
    options, given = list[str](), set[str]()
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            fix = f"there is a recipe already, {recipe}; options are written as --name value"
            require(recipe is None, "recipe", word, fix)
            require(word, "recipe", word, "name a shipped recipe or a YAML file, or leave it out")
            recipe = word
            continue
        name = word.partition("=")[0].replace("-", "_")
        shown = word.partition("=")[2] if "=" in word else words[0] if words else None
        require(name not in given, word.partition("=")[0], shown, "is given twice; keep one")
        given.add(name)
        options.append(word)
        if "=" not in word and words:
            options.append(words.pop(0))
    return recipe or default, options
