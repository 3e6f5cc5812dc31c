"""`dare presets`: what there is, and every setting of one explained."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from importlib import resources
from itertools import pairwise, takewhile
from json import dumps
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.table import Table

from dare.commands.options import Json


def presets(
    name: Annotated[
        str | None, typer.Argument(help="Show every setting of this preset.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """List the presets, or print one in full: each setting, what it does, where it differs.

    The YAML that is printed can be edited and read back with CurriculumConfig.from_dict.
    """
    from dare.config import CurriculumConfig, load_preset, preset_names

    if name is None and json:
        _print_json(
            [
                {"name": each, "summary": _summary(each), "changes": load_preset(each)}
                for each in preset_names()
            ]
        )
    elif name is None:
        _print_table(preset_names())
    elif json:
        settings = CurriculumConfig.preset(name).to_dict()
        docs = dict(field_docs(CurriculumConfig))
        _print_json({"name": name, "summary": _summary(name), "settings": settings, "docs": docs})
    else:
        config = CurriculumConfig.preset(name)
        typer.echo(f"# Preset {name}: {_summary(name)}")
        for line in _yaml_lines(config, CurriculumConfig(), dict(field_docs(CurriculumConfig))):
            typer.echo(line)


def _print_json(value: Any) -> None:
    typer.echo(dumps(value, indent=2, ensure_ascii=False))


def _print_table(names: list[str]) -> None:
    from dare.config import CurriculumConfig

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("preset", "estimator", "selection", "tiers"):
        table.add_column(title, no_wrap=True)
    table.add_column("what it is")
    for name in names:
        config = CurriculumConfig.preset(name)
        used = [tier for tier in ("easy", "hard") if config.tiers and getattr(config, tier).use]
        tiers = "yes" if len(used) == 2 else "".join(used) or "no"
        row = (name, config.estimator.name, config.selection.name, tiers, _summary(name))
        table.add_row(*row)
    Console(highlight=False).print(table)


def _summary(preset: str) -> str:
    """What the comment on top of the preset's file says."""
    text = resources.files("dare").joinpath("presets", f"{preset}.yaml").read_text("utf-8")
    comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.lstrip("# ").rstrip() for line in comment)


def field_docs(kind: type[Any], path: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, doc) of every field: the string under it, or for a section its docstring.

    A field that a subclass only gives a new default keeps the text of the class it came from. The
    words that a field accepts follow its text.
    """
    own: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        own |= _strings_under_fields(base)
    hints = get_type_hints(kind)
    for item in dataclasses.fields(kind):
        where, section = f"{path}{item.name}", hints[item.name]
        if dataclasses.is_dataclass(section):
            yield where, own.get(item.name) or " ".join((section.__doc__ or "").split())
            yield from field_docs(section, f"{where}.")  # type: ignore[arg-type]
        else:
            words = _words(section)
            choices = f"Choices: {', '.join(words)}." if words else ""
            yield where, f"{own.get(item.name, '')} {choices}".strip()


def _words(hint: Any) -> list[str]:
    """The words of a Literal, also inside a union."""
    if get_origin(hint) is Literal:
        return [str(word) for word in get_args(hint)]
    return [word for option in get_args(hint) for word in _words(option)]


def _strings_under_fields(kind: type[Any]) -> dict[str, str]:
    """{field: doc} of one class body; empty where the source is not to be had."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    found: dict[str, str] = {}
    for field, below in pairwise(getattr(body, "body", ())):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(doc))),
            ):
                found[name] = " ".join(doc.split())
    return found


def _yaml_lines(
    config: Any, default: Any, docs: dict[str, str], path: str = "", indent: str = ""
) -> Iterator[str]:
    """The settings as YAML, each under its explanation; a changed one names the default."""
    wrap = textwrap.TextWrapper(96, break_on_hyphens=False, break_long_words=False)
    wrap.initial_indent = wrap.subsequent_indent = f"{indent}# "
    for item in dataclasses.fields(config):
        where = f"{path}{item.name}"
        value, usual = getattr(config, item.name), getattr(default, item.name)
        section = dataclasses.is_dataclass(value)
        if section:
            yield ""
        yield from wrap.wrap(docs.get(where, ""))
        if section:
            yield f"{indent}{item.name}:"
            yield from _yaml_lines(value, usual, docs, f"{where}.", indent + "  ")
        else:
            note = "" if value == usual else f"  # default: {_scalar(usual)}"
            yield f"{indent}{item.name}: {_scalar(value)}{note}"


def _scalar(value: Any) -> str:
    """One value as YAML writes it, quoted where it must be."""
    import yaml

    return yaml.safe_dump([value], default_flow_style=True, width=1000).strip()[1:-1]
